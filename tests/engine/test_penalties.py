"""What a request wants of its text's logits: right by definition, and the same wherever a chunk is decoded."""

import dataclasses

import pytest
import torch

from pasta.engine import Engine, EngineConfig, Request, SamplingParams
from pasta.engine.drafts import Drafter
from pasta.engine.penalties import Edit, VisibleText, adjusted
from pasta.errors import UserError
from pasta.interpreter import Interpreter, Limits
from pasta.lang import encode_start
from tests.engine.test_elsewhere import come_back_late
from tests.support.choices import choose
from tests.support.models import UNRECORDED, tiny

LOADED = tiny()
CODEC = LOADED.codec
SIZES = {"num_slots": 4, "slot_tokens": 1024, **UNRECORDED}
LIMITS = Limits(max_tokens=300, max_chunk_tokens=30, max_threads=8, max_depth=2)
PROMPT = encode_start(CODEC, "Tell me about France")


def engine(**config):
    return Engine(LOADED, EngineConfig(**{**SIZES, **config}))


def ask(limits=LIMITS, **params):
    sampling = SamplingParams(**{"promise_bias": 7.0, **params})
    return Request(PROMPT, limits=limits, sampling=sampling)


def sequential(max_tokens=60, **params):
    return engine().generate(
        ask(Limits(max_tokens=max_tokens), promise_bias=0.0, **params).replace(parallel=False)
    )


def test_penalties_are_their_definitions():
    logits = torch.randn(2, 12, generator=torch.Generator().manual_seed(0)) * 3
    prompt, seen, drafts = [1, 2], [2, 3, 3, 3], (4,)
    params = SamplingParams(
        repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.25, logit_bias=((3, 2.0), (5, -9.0))
    )
    found = adjusted(logits, [Edit(1, params, prompt, seen, drafts, [7])])
    assert torch.equal(found[0], logits[0])
    for token, value in enumerate(logits[1].tolist()):
        value += {3: 2.0, 5: -9.0}.get(token, 0.0)
        if token in {1, 2, 3, 4}:
            value = value / 1.3 if value > 0 else value * 1.3
        count = [*seen, *drafts].count(token)
        value -= 0.5 * count + (0.25 if count else 0.0)
        assert found[1, token].item() == pytest.approx(float("-inf") if token == 7 else value)


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest():
    logits = torch.log(torch.tensor([[0.5, 0.26, 0.24, 1e-9]]))
    allowed, keys = torch.ones(400, 4, dtype=torch.bool), list(range(400))
    params = [SamplingParams(temperature=1.0, min_p=0.5)] * 400
    assert set(choose(logits.expand(400, -1), allowed, params, keys, 9)) == {0, 1}


def test_a_thread_sees_the_text_that_its_segment_sees_and_no_tags():
    result = engine().generate(ask())
    request = ask().replace(forced=result.response_ids)
    checked = 0
    it = Interpreter(CODEC.grammar, request.limits, PROMPT, strict=False)
    visible = VisibleText(it)
    assert list(visible.prompt) == [token for token in PROMPT if CODEC.grammar.text_mask[token]]
    order = sorted(
        (step, thread.path, token)
        for thread in result.trace.threads
        for step, token in zip(thread.steps, thread.token_ids, strict=True)
    )
    for _, path, token in order:
        thread = next(t.id for t in it.threads if t.path == path)
        it.emit(thread, token)
        for live in it.live_threads:
            if it.allowed(live).base != "text":
                continue
            sees, rows = it.sees[it.threads[live].segment], []
            for u in it.threads:
                inside = False
                for own, segment in zip(u.tokens, u.segments, strict=False):
                    inside = own == CODEC.control.promise or (inside and own != CODEC.control.close)
                    if not inside and sees >> segment & 1 and CODEC.grammar.text_mask[own]:
                        rows.append(own)
            assert sorted(visible.seen(live)) == sorted(rows)
            if it.threads[live].is_chunk:
                away = Interpreter.for_chunk(CODEC.grammar, request.limits, it.snapshot(live))
                there = VisibleText(away)
                assert there.prompt == visible.prompt
                if not it.threads[live].tokens:
                    checked += 1
                    assert sorted(there.seen(0)) == sorted(rows)
    assert checked > 2


ALL = {
    "frequency_penalty": 0.7,
    "presence_penalty": 0.4,
    "repetition_penalty": 1.2,
    "min_p": 0.01,
    "logit_bias": tuple((token, 3.0) for token in CODEC.encode_text("the sea")),
    "min_tokens": 40,
}


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_tokens_are_the_same_batched_with_help_and_elsewhere(monkeypatch, temperature):
    monkeypatch.setattr(Drafter, "_may_pay", lambda self, feeds, num_slots: True)
    monkeypatch.setattr(Drafter, "_pays", lambda self, found, *_: [len(d.tokens) for d in found])
    asked = [
        ask(temperature=temperature, seed=seed, **ALL).replace(request_id=str(seed)) for seed in range(3)
    ]
    alone = {r.request_id: r.response_ids for r in engine(drafts=0, jump_forward=False).decode(asked, 1)}
    together = {r.request_id: r.response_ids for r in engine(drafts=4).decode(asked)}
    assert together == alone
    for request in asked:
        late, _ = come_back_late(engine(), request.replace(place_locally=lambda live, estimate: False))
        assert late.response_ids == alone[request.request_id]


def test_a_penalty_makes_text_less_repetitive():
    plain = sequential(ignore_eos=True)
    penalised = sequential(ignore_eos=True, frequency_penalty=2.0, presence_penalty=2.0)
    assert len(set(penalised.response_ids)) > len(set(plain.response_ids))


def test_a_banned_token_does_not_come_and_a_wanted_one_does():
    plain = sequential()
    most = max(set(plain.response_ids[:-1]), key=plain.response_ids.count)
    assert most not in sequential(logit_bias=((most, -100.0),)).response_ids
    assert set(sequential(logit_bias=((most, 100.0),)).response_ids[:-1]) == {most}


def test_min_tokens_and_ignore_eos_put_off_the_end():
    ends = tuple((token, 100.0) for token in sorted(CODEC.eos_ids))
    assert sequential(logit_bias=ends).num_tokens == 1
    late = sequential(logit_bias=ends, min_tokens=20)
    assert (late.num_tokens, late.finish_reason) == (21, "stop")
    never = sequential(logit_bias=ends, ignore_eos=True)
    assert (never.num_tokens, never.finish_reason) == (60, "length")


def test_a_stop_token_ends_the_answer_before_it_and_not_before_min_tokens():
    plain = sequential()
    token = plain.response_ids[20]
    first = plain.response_ids.index(token)
    cut = sequential(stop_token_ids=(token,))
    assert (cut.text, cut.finish_reason) == (CODEC.decode_text(plain.response_ids[:first]), "stop")
    late = sequential(stop_token_ids=(token,), min_tokens=30)
    assert token not in late.response_ids[:30]


def test_a_stop_token_in_a_chunk_that_comes_back_ends_the_answer():
    plain = engine().generate(ask())
    chunk = next(t for t in plain.trace.threads if t.path)
    token = next(t for t in chunk.token_ids[3:] if CODEC.grammar.text_mask[t])
    request = ask(stop_token_ids=(token,))
    expected = engine().generate(request)
    assert expected.document is None
    late, _ = come_back_late(engine(), request.replace(place_locally=lambda live, estimate: False))
    assert (late.text, late.finish_reason) == (expected.text, "stop")


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 1.5},
        {"frequency_penalty": 3},
        {"repetition_penalty": 0},
        {"min_tokens": -1},
        {"logit_bias": ((5, 101.0),)},
        {"stop_token_ids": (-1,)},
    ],
)
def test_what_is_out_of_range_is_refused_by_name(fields):
    with pytest.raises(UserError, match=next(iter(fields))):
        SamplingParams(**fields)


def test_the_fields_change_nothing_where_they_are_neutral():
    assert not SamplingParams().adjusts
    names = {field.name for field in dataclasses.fields(SamplingParams)}
    assert {name for name in ALL if name not in names} == set()
