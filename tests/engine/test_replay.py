"""With its tokens forced, the engine decodes exactly the document that it is given."""

import pytest

from pasta.engine import Engine, EngineConfig, Request
from pasta.errors import UserError
from pasta.interpreter import UNBOUNDED, Interpreter, TokenKind, linearise
from pasta.lang import Chunk, Document, Sync, Text, annotated_ids, plain_ids, render
from tests.support.documents import random_document
from tests.support.models import tiny

LOADED = tiny()
CODEC = LOADED.codec
PROMPT = CODEC.encode_prompt([{"role": "user", "content": "Hi"}])


def replay(engine, prompt_ids, ids, parallel):
    return engine.generate(Request(prompt_ids, limits=UNBOUNDED, parallel=parallel, forced=ids))


@pytest.fixture(scope="module")
def engine():
    return Engine(LOADED, EngineConfig(num_slots=1, slot_tokens=1024, drafts=0))


@pytest.mark.parametrize("seed", range(4))
def test_the_tokens_and_the_critical_path_are_the_documents(engine, seed):
    document = random_document(seed)
    ids = annotated_ids(CODEC, document)
    result = replay(engine, PROMPT, ids, parallel=True)
    schedule = Interpreter(CODEC.grammar, UNBOUNDED, PROMPT, strict=False)
    schedule.drive(0, ids)
    assert list(result.response_ids) == ids
    assert result.document == document
    assert result.critical_path == schedule.critical_path
    assert result.finish_reason == "stop"


@pytest.mark.parametrize("seed", range(4))
def test_the_sequential_form_is_the_rendered_answer_one_token_a_step(engine, seed):
    document = random_document(seed)
    ids = plain_ids(CODEC, document)
    result = replay(engine, PROMPT, ids, parallel=False)
    assert result.text == render(document)
    assert result.critical_path == result.num_tokens == len(ids)


@pytest.mark.parametrize("seed", range(4))
def test_both_forms_hold_the_same_text_tokens(seed):
    document = random_document(seed)
    rows = linearise(CODEC.grammar, PROMPT, annotated_ids(CODEC, document))
    pairs = zip(rows.kinds, rows.targets, strict=True)
    text = [target for kind, target in pairs if kind in (TokenKind.TEXT, TokenKind.EOS)]
    assert sorted(text) == sorted(plain_ids(CODEC, document))


def test_lanes_take_fewer_steps_than_tokens(engine):
    chunk = Text("the capital of France is Paris.\n" * 9)
    document = Document((Chunk("a", 90, (chunk,)), Chunk("b", 90, (chunk,)), Sync(), Text("Done.")))
    lanes = replay(engine, PROMPT, annotated_ids(CODEC, document), parallel=True)
    plain = replay(engine, PROMPT, plain_ids(CODEC, document), parallel=False)
    assert lanes.steps < plain.steps


def test_a_document_that_does_not_fit_is_one_clear_line():
    small = Engine(LOADED, EngineConfig(num_slots=1, slot_tokens=64))
    with pytest.raises(UserError, match=r"forced response: .* tokens, but the context leaves room for"):
        replay(small, PROMPT, annotated_ids(CODEC, Document((Text("word " * 80),))), parallel=False)
