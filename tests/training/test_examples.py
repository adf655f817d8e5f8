"""What a training example says of an annotated answer, and what its sequential twin says."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.data.linearise import make_example
from pasta.interpreter import IGNORE, TokenKind
from pasta.lang import Codec, CodecError, Document, encode_messages, render
from tests.support.documents import documents, random_document
from tests.support.tokenizers import TEMPLATE, byte_level

CODEC = Codec(byte_level())
MESSAGES = [{"role": "user", "content": "Say <sync/> twice."}]
PROMPT = CODEC.encode_prompt(MESSAGES)


@settings(deadline=None)
@given(documents)
def test_the_twin_has_the_text_tokens_of_the_annotated_answer(document: Document) -> None:
    twin = make_example(CODEC, MESSAGES, document, "sequential")
    threads = make_example(CODEC, MESSAGES, document, "pasta")
    text = [
        label
        for label, kind in zip(threads.shift_labels, threads.kinds, strict=True)
        if kind in (TokenKind.TEXT, TokenKind.EOS)
    ]
    # Threads are stored in the order of the text, but their rows predict across chunks: compare as multisets.
    assert sorted(twin.input_ids[len(PROMPT) :]) == sorted(text)
    assert CODEC.decode_text(twin.input_ids[len(PROMPT) : -1]) == render(document)


def test_the_twin_is_plain_causal_text() -> None:
    example = make_example(CODEC, MESSAGES, random_document(3), "sequential")
    assert example.position_ids == list(range(len(example)))
    assert set(example.segment_ids) == {0}
    assert example.sees == [1]
    assert example.shift_labels[len(PROMPT) - 1 : -1] == example.input_ids[len(PROMPT) :]


@settings(deadline=None)
@given(st.integers(0, 200), st.sampled_from(["sequential", "pasta"]))
def test_loss_covers_the_response_only(seed: int, mode: str) -> None:
    example = make_example(CODEC, MESSAGES, random_document(seed), mode)
    assert example.input_ids[: len(PROMPT)] == PROMPT
    assert set(example.shift_labels[: len(PROMPT) - 1]) <= {IGNORE}
    assert example.shift_labels[len(PROMPT) - 1] != IGNORE
    assert example.shift_labels.count(CODEC.eos_id) == 1
    assert CODEC.control.async_open not in example.shift_labels


def test_a_system_message_leads_the_user_s_where_the_template_takes_none() -> None:
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
    )
    codec = Codec(tokenizer)
    messages = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    joined = [{"role": "user", "content": f"Be brief.\n\n{MESSAGES[0]['content']}"}]
    assert encode_messages(codec, messages) == codec.encode_prompt(joined)
    assert encode_messages(CODEC, messages) == CODEC.encode_prompt(messages)


def test_messages_that_a_template_refuses_otherwise_are_an_error() -> None:
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.chat_template = "{{ raise_exception('never') }}"
    with pytest.raises(CodecError, match="never"):
        encode_messages(Codec(tokenizer), MESSAGES)
