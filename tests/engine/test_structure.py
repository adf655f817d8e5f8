"""Structured output: whatever the weights say, the text follows its grammar, with help, without, and elsewhere."""

import json
import re

import pytest

from pasta.engine import DoneEvent, Engine, EngineConfig, Request, SamplingParams, ThreadProgress
from pasta.engine.drafts import Drafter
from pasta.engine.structure import Grammar, Structure, Structures
from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.lang import encode_start
from tests.support.models import UNRECORDED, tiny

LOADED = tiny()
CODEC = LOADED.codec
STRUCTURES = Structures(CODEC)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
        "number": {"type": "integer", "minimum": 0, "maximum": 999},
        "kinds": {"type": "array", "items": {"enum": ["sea", "land"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "number", "kinds"],
    "additionalProperties": False,
}
JSON = Grammar("json_schema", json.dumps(SCHEMA))
REGEX = Grammar("regex", r"(yes|no): [0-9]{1,3}\.")


def ask(grammar, max_tokens=200, **params):
    return Request(
        encode_start(CODEC, "France"),
        limits=Limits(max_tokens=max_tokens),
        sampling=SamplingParams(**params),
        parallel=False,
        structure=STRUCTURES.compile(grammar),
    )


def engine(**config):
    return Engine(LOADED, EngineConfig(**{"num_slots": 4, "slot_tokens": 512, **UNRECORDED, **config}))


def asked():
    return [
        ask(grammar, temperature=temperature, seed=seed).replace(
            request_id=f"{seed} {grammar.kind} {temperature}"
        )
        for seed in range(3)
        for grammar in (JSON, REGEX)
        for temperature in (0.0, 1.5)
    ]


def test_between_tokens_of_json_is_one_space_or_a_new_line_with_its_indentation():
    structure = STRUCTURES.compile(Grammar("json_schema", '{"type": "object"}'))

    def may_follow(text, character):
        allowed = structure.matcher().allowed(CODEC.encode_text(text))
        return bool(allowed[CODEC.encode_text(character)[0]])

    assert may_follow("{", " ")
    assert may_follow("{", "\n")
    assert may_follow("{\n  ", " ")
    assert not may_follow("{\n", "\n")
    assert not may_follow("{ ", " ")


@pytest.mark.parametrize("drafts", [0, 16])
@pytest.mark.parametrize("token", [CODEC.control.close, CODEC.control.sync, CODEC.eos_id])
def test_text_that_reads_like_a_special_token_is_written_as_text(monkeypatch, token, drafts):
    monkeypatch.setattr(Drafter, "_may_pay", lambda self, feeds, num_slots: True)
    monkeypatch.setattr(Drafter, "_pays", lambda self, found, *_: [len(d.tokens) for d in found])
    text = f"<br{CODEC.decode_text([token])}Constantinople"
    result = engine(drafts=drafts).generate(ask(Grammar("regex", re.escape(text))))
    assert (result.text, result.finish_reason) == (text, "stop")
    if drafts:
        assert result.steps <= 4


def test_what_a_grammar_leaves_no_choice_about_is_drafted(monkeypatch):
    monkeypatch.setattr(Drafter, "_may_pay", lambda self, feeds, num_slots: True)
    monkeypatch.setattr(Drafter, "_pays", lambda self, found, *_: [len(d.tokens) for d in found])
    request = ask(Grammar("regex", "Constantinople|Bucharest"))
    plain, drafted = (engine(drafts=count).generate(request) for count in (0, 16))
    assert plain.response_ids == drafted.response_ids
    assert plain.steps == len(plain.response_ids)
    assert drafted.steps <= 3  # the first letter, the rest, the end


@pytest.mark.slow
def test_the_text_follows_its_grammar_alone_and_together_with_drafts(monkeypatch):
    monkeypatch.setattr(Drafter, "_may_pay", lambda self, feeds, num_slots: True)
    monkeypatch.setattr(Drafter, "_pays", lambda self, found, *_: [len(d.tokens) for d in found])
    alone = {r.request_id: r for r in engine(drafts=0).decode(asked(), 1)}
    together = {r.request_id: r for r in engine(drafts=4).decode(asked())}
    for request_id, result in alone.items():
        assert result.response_ids == together[request_id].response_ids
        assert result.finish_reason == "stop"
        if "regex" in request_id:
            assert re.fullmatch(REGEX.text, result.text)
        else:
            found = json.loads(result.text)
            assert list(found) == ["name", "number", "kinds"]
            assert re.fullmatch("[A-Z][a-z]{2,8}", found["name"])
            assert 0 <= found["number"] <= 999
            assert set(found["kinds"]) <= {"sea", "land"}
    assert len({result.text for result in alone.values()}) > 5


@pytest.mark.parametrize("cut", [1, 9])
def test_an_answer_goes_on_from_any_of_its_tokens_on_another_engine(cut):
    request = ask(JSON, temperature=1.0, seed=4)
    expected = engine().generate(request)
    progress = ThreadProgress(tuple(((), token) for token in expected.response_ids[:cut]))
    assert engine().generate(request.replace(progress=progress)).response_ids == expected.response_ids


def test_a_limit_cuts_it():
    result = engine().generate(ask(JSON, max_tokens=5))
    assert (result.num_tokens, result.finish_reason) == (5, "length")


@pytest.mark.parametrize("params", [{"ignore_eos": True}, {"min_tokens": 100}])
def test_it_ends_where_its_grammar_leaves_nothing_else(params):
    result = engine().generate(ask(REGEX, **params))
    assert re.fullmatch(REGEX.text, result.text)
    assert result.finish_reason == "stop"


def test_promises_do_not_go_with_it():
    with pytest.raises(UserError, match="structured answer has no promises"):
        engine().submit(ask(JSON).replace(parallel=True))


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", "(a|b"),
        Grammar("regex", "(?=a)b"),
        Grammar("json_schema", '{"type": "strin"}'),
        Grammar("json_schema", '{"type": "array", "uniqueItems": true}'),
        Grammar("json_schema", '{"$ref": "#/nowhere"}'),
        Grammar("json_schema", '{"type": "integer", "multipleOf": 1000003}'),
        Grammar("json_schema", '{"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 0.13}]}'),
        Grammar(
            "json_schema",
            json.dumps({"anyOf": [{"patternProperties": {f"^[ab]{{{n}}}$": True}} for n in range(65)]}),
        ),
        Grammar("regex", "a" * 100_001),
    ],
)
def test_what_is_no_grammar_or_cannot_be_enforced_is_one_line(grammar):
    with pytest.raises(UserError) as refused:
        STRUCTURES.compile(grammar)
    assert "\n" not in str(refused.value)


def test_schemas_of_one_of_which_several_may_match_are_told_what_to_write_instead():
    with pytest.raises(UserError) as refused:
        STRUCTURES.compile(Grammar("json_schema", '{"oneOf": [{"type": "integer"}, {"type": "number"}]}'))
    assert "coerce" not in str(refused.value)
    assert "anyOf" in str(refused.value)
    distinct = [
        {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in "ab"
    ]
    STRUCTURES.compile(Grammar("json_schema", json.dumps({"oneOf": distinct})))
    STRUCTURES.compile(Grammar("json_schema", '{"oneOf": [{"type": "integer"}, {"type": "string"}]}'))


@pytest.mark.parametrize("multiple", [0.01, 5, 2.5, 10_000])
def test_common_multiples_compile(multiple):
    STRUCTURES.compile(Grammar("json_schema", json.dumps({"type": "number", "multipleOf": multiple})))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_an_answer_whose_grammar_fails_fails_alone(temperature):
    from llguidance import LLMatcher

    matcher = LLMatcher(STRUCTURES._tokens(), LLMatcher.grammar_from_regex("a"), log_level=0)
    assert not matcher.consume_tokens(CODEC.encode_text("b"))
    broken = Structure(matcher, CODEC)
    running, ends = engine(), {}
    running.submit(ask(REGEX, temperature=temperature).replace(request_id="broken", structure=broken))
    running.submit(ask(REGEX, temperature=temperature).replace(request_id="whole"))
    while running.has_work:
        ends |= {event.request_id: event for event in running.step() if isinstance(event, DoneEvent)}
    assert isinstance(ends["broken"].error, UserError)
    assert "grammar" in str(ends["broken"].error)
    assert re.fullmatch(REGEX.text, ends["whole"].result.text)


@pytest.mark.slow
def test_a_grammar_that_reaches_a_limit_while_it_is_followed_is_its_user_s_mistake():
    running, ends = engine(), []
    structure = STRUCTURES.compile(Grammar("regex", "a{1000000}"))
    running.submit(ask(REGEX).replace(structure=structure))
    while running.has_work:
        ends += [event for event in running.step() if isinstance(event, DoneEvent)]
    assert str(ends[0].error) == "the grammar does not go on: lexer error: too many expressions constructed"
    assert isinstance(ends[0].error, UserError)
