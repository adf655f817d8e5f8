"""Sampled answers as a training batch."""

import pytest
import torch

from pasta.data.linearise import make_example
from pasta.engine.sampling import ConstraintTable
from pasta.interpreter import Limits
from pasta.lang import to_text
from pasta.rl.batch import thread_batch
from tests.support.documents import random_document
from tests.training.pair_runs import CODEC, TOKENIZER

PROMPT = [{"role": "user", "content": "Say tea."}]
LIMITS = Limits()
TABLE = ConstraintTable(CODEC.grammar, len(TOKENIZER), torch.device("cpu"))
DOCUMENTS = [document for document in map(random_document, range(24)) if to_text(document).strip()]

ANSWERS = [[*CODEC.encode(document), CODEC.eos_id] for document in DOCUMENTS]


def batch_of(number: int):
    prompt = CODEC.encode_prompt(PROMPT)
    answers = [(prompt, answer) for answer in ANSWERS[:number]]
    return thread_batch(TABLE, LIMITS, answers, 0), answers


def test_short_answers_share_a_row_and_no_row_is_longer_than_the_longest_answer_needs():
    batch, answers = batch_of(len(DOCUMENTS))
    rows, length = batch.inputs["input_ids"].shape
    assert rows < len(answers)
    assert length < max(len(prompt) + len(answer) for prompt, answer in answers) + 32


def test_each_token_is_read_where_its_own_answer_predicts_it():
    batch, answers = batch_of(len(DOCUMENTS))
    length = max(len(answer) for _, answer in answers)
    targets = batch.by_token(batch.labels, length)
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


def test_an_ending_that_a_chunk_may_not_choose_is_neither_taught_nor_untaught():
    batch, _ = batch_of(len(DOCUMENTS))
    logits = torch.randn(*batch.labels.shape, len(TOKENIZER)).requires_grad_()
    log_probs, _ = batch.log_probs(logits[:, batch.columns], TABLE.forbidden, 1.0)
    log_probs.sum().backward()
    taught = logits.grad[..., CODEC.eos_id] != 0
    main = torch.zeros_like(taught).flatten()
    for answer, sources in zip(ANSWERS, batch.predicted_by, strict=True):
        depth = 0
        for token, source in zip(answer, sources, strict=True):
            depth += token == CODEC.control.async_open
            if source >= 0 and not depth:
                main[source] = True
            depth -= token == CODEC.control.async_close
    assert taught.any()
    assert not (taught.flatten() & ~main).any()


def test_log_probabilities_are_those_at_the_temperature_that_engines_sample_at():
    batch, _ = batch_of(1)
    logits = torch.randn(len(batch.labels), len(batch.columns), len(TOKENIZER))
    doubled = batch.log_probs(2 * logits, TABLE.forbidden, 1.0)
    torch.testing.assert_close(batch.log_probs(logits, TABLE.forbidden, 0.5), doubled)
