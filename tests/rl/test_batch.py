"""Sampled answers as a training batch."""

import pytest

from pasta.data.linearise import make_example
from pasta.lang import to_text
from pasta.rl.batch import thread_batch
from tests.support.documents import random_document
from tests.training.pair_runs import CODEC

PROMPT = [{"role": "user", "content": "Say tea."}]
DOCUMENTS = [document for document in map(random_document, range(24)) if to_text(document).strip()]


def batch_of(number: int):
    prompt = CODEC.encode_prompt(PROMPT)
    answers = [(prompt, [*CODEC.encode(document), CODEC.eos_id]) for document in DOCUMENTS[:number]]
    return thread_batch(CODEC.grammar, answers, 0), answers


def test_short_answers_share_a_row_and_no_row_is_longer_than_the_longest_answer_needs():
    batch, answers = batch_of(len(DOCUMENTS))
    rows, length = batch.inputs["input_ids"].shape
    assert rows < len(answers)
    assert length < max(len(prompt) + len(answer) for prompt, answer in answers) + 32


def test_each_token_is_read_where_its_own_answer_predicts_it():
    batch, answers = batch_of(len(DOCUMENTS))
    length = max(len(answer) for _, answer in answers)
    targets = batch.by_token(batch.inputs["shift_labels"], length)
    for found, (_, ids) in zip(targets.tolist(), answers, strict=True):
        chosen = [token for token in ids if token != CODEC.grammar.control.async_open]
        assert [token for token in found if token] == [token for token in chosen if token]


@pytest.mark.parametrize("number", [1, len(DOCUMENTS)])
def test_no_answer_sees_another_of_its_row(number: int):
    batch, _ = batch_of(number)
    segments, sees = batch.inputs["segment_ids"], batch.inputs["sees"]
    own = [len(make_example(CODEC, PROMPT, document, "pasta").sees) for document in DOCUMENTS[:number]]
    assert sum(int(row.max()) + 1 for row in segments) == sum(own)
    seen = int(sees.sum())
    alone = sum(
        bin(mask).count("1")
        for document in DOCUMENTS[:number]
        for mask in make_example(CODEC, PROMPT, document, "pasta").sees
    )
    assert seen == alone
