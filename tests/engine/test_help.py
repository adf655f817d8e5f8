"""Help changes nothing: with forced tokens fed without a step, and with drafts, a request has the same tokens."""

import functools
import random

import pytest

from pasta.engine import DoneEvent, Engine, EngineConfig, Request, SamplingParams, TokenEvent
from pasta.interpreter import Limits, RepetitionDetection
from pasta.lang import parse
from tests.engine.test_parity import engine_logits, training_logits
from tests.support.documents import random_document
from tests.support.models import tiny

LOADED = tiny()
CODEC = LOADED.codec
SIZES = {"num_slots": 4, "slot_tokens": 512, "trace_forward": False, "reuse_prefixes": False}
PLAIN = EngineConfig(**SIZES, jump_forward=False, drafts=0)
JUMP = EngineConfig(**SIZES, drafts=0)
DRAFTS = EngineConfig(**SIZES, jump_forward=False, drafts=3)
HELP = EngineConfig(**SIZES, drafts=5)
SEEDS = range(4)
pytestmark = pytest.mark.usefixtures("every_draft")
helps = pytest.mark.parametrize("config", [JUMP, DRAFTS, HELP], ids=["jump-forward", "drafts", "both"])


def requests(seed, count=8, **fields):
    """Requests whose limits cut most answers, greedy and sampled ones in turn, with many promises."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        text = rng.choice(["Tell me about France", "x", "Count to ten and name each planet", "<sync/>"])
        limits = Limits(
            max_tokens=rng.randint(1, 160),
            max_chunk_tokens=rng.choice([8, 40, 200]),
            max_threads=rng.randint(1, 12),
            max_depth=rng.randint(1, 3),
            max_topic_tokens=rng.randint(1, 6),
        )
        sampling = SamplingParams(
            temperature=0.9 * (number % 2),
            top_p=rng.choice([1.0, 0.8]),
            seed=rng.randrange(99),
            promise_bias=7.0,
        )
        prompt = CODEC.encode_prompt([{"role": "user", "content": text}])
        found.append(
            Request(prompt, limits=limits, sampling=sampling, request_id=str(number)).replace(**fields)
        )
    return found


def same(result):
    """What must not change, by path."""
    threads = {t.path: (t.token_ids, t.steps) for t in result.trace.threads}
    return (
        result.response_ids,
        threads,
        result.text,
        result.finish_reason,
        result.num_tokens,
        result.critical_path,
    )


def decode(config, asked, at_once=None):
    return {result.request_id: result for result in Engine(LOADED, config).decode(asked, at_once)}


@functools.cache
def answers(seed, config):
    """To ``requests(seed)``: one by one without help, with help all at once. Only tests without fixtures of their own
    may share them.
    """
    return decode(config, requests(seed), at_once=1 if config is PLAIN else None)


@pytest.mark.slow
@helps
@pytest.mark.parametrize("seed", SEEDS)
def test_answers_are_the_same_alone_and_together(seed, config):
    """Greedy and sampled, cut by limits, nested, several at once."""
    assert {key: same(result) for key, result in answers(seed, config).items()} == {
        key: same(result) for key, result in answers(seed, PLAIN).items()
    }


@pytest.mark.slow
@helps
def test_the_answers_above_are_cut_by_limits_and_take_fewer_steps(config):
    plain = [result for seed in SEEDS for result in answers(seed, PLAIN).values()]
    helped = [result for seed in SEEDS for result in answers(seed, config).values()]
    assert all(result.steps == result.critical_path for result in plain)
    assert all(result.steps <= result.critical_path for result in helped)
    # Random weights repeat little.
    least = 1.0 if config is DRAFTS else 0.95
    assert sum(result.steps for result in helped) < least * sum(result.steps for result in plain)
    cut = [result for result in plain if result.finish_reason == "length"]
    assert sum(len(result.trace.threads) > 2 for result in cut) > 5
    assert max(thread.depth for result in plain for thread in result.trace.threads) > 1


def repeating(count=8):
    """Requests whose threads soon repeat themselves, some in chunks, greedy and sampled ones in turn."""
    limits = Limits(max_tokens=160, repetition_detection=RepetitionDetection(4, 1, 2))
    return [
        Request(
            CODEC.encode_prompt([{"role": "user", "content": f"Tell me about France {number}"}]),
            limits=limits,
            sampling=SamplingParams(temperature=0.3 * (number % 2), promise_bias=3.0, seed=number),
            request_id=str(number),
        )
        for number in range(count)
    ]


@pytest.mark.slow
@helps
def test_an_answer_that_repeats_itself_ends_in_the_same_place(config):
    plain = decode(PLAIN, repeating(), at_once=1)
    ended = [result for result in plain.values() if result.finish_reason == "repetition"]
    assert len(ended) > 3
    assert any(len(result.trace.threads) > 1 for result in ended)
    assert {key: same(result) for key, result in decode(config, repeating()).items()} == {
        key: same(result) for key, result in plain.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_stop_string_ends_an_answer_where_it_would_end_it(seed):
    asked = requests(seed)
    plain = answers(seed, PLAIN)
    stops = {key: result.text[len(result.text) // 2 :][:3] for key, result in plain.items()}
    asked = [
        request.replace(
            sampling=SamplingParams(**{**fields(request.sampling), "stop": (stops[request.request_id],)})
        )
        for request in asked
        if stops[request.request_id]
    ]
    stopped, helped = decode(PLAIN, asked, at_once=1), decode(HELP, asked)
    assert any(result.document is None for result in stopped.values())
    assert {key: same(result) for key, result in helped.items()} == {
        key: same(result) for key, result in stopped.items()
    }


CHUNK = "Paris lies on the Seine. Rome lies on the Tiber. " * 3
CHUNKS = "".join(f'<promise topic="{name}" tokens="90"/><async>{CHUNK}{name}</async>' for name in "abc")


AGAIN = "Tiber. Paris lies on the Seine. Rome lies on the Tiber. Paris"  # it ends where all is drafted


@pytest.mark.slow
@pytest.mark.parametrize("stop", [AGAIN, "Tiber. a", "Tiber. b", "ca"])
@pytest.mark.parametrize("config", [DRAFTS, HELP], ids=["drafts", "both"])
def test_a_stop_string_leaves_drafts_on_while_several_threads_live(config, stop):
    ids = [*CODEC.encode(parse(CHUNKS)), CODEC.eos_id]
    request = Request([5, 6, 7], forced=ids, sampling=SamplingParams(stop=(stop,)), limits=Limits())
    engine = Engine(LOADED, config)
    plain, helped = Engine(LOADED, PLAIN).generate(request), engine.generate(request)
    assert same(helped) == same(plain)
    assert (stop == "ca") == (plain.document is not None), "the text has no such string"
    assert helped.steps < 0.8 * plain.steps
    assert engine.drafter.num_accepted > 15


def test_an_answer_that_a_stop_string_ends_is_what_is_read_up_to_its_last_token():
    """Chunks behind it, of which threads have decoded as much meanwhile, are no part of it."""
    ids = [*CODEC.encode(parse(CHUNKS)), CODEC.eos_id]
    request = Request([5, 6, 7], forced=ids, sampling=SamplingParams(stop=("Rome",)), limits=Limits())
    result = Engine(LOADED, HELP).generate(request)
    assert result.text == "Paris lies on the Seine. "
    count = len(result.response_ids)
    assert list(result.response_ids) == ids[:count]
    assert "Rome" in CODEC.decode_text(ids[:count])
    assert "Rome" not in CODEC.decode_text(ids[: count - 1])
    assert (result.num_tokens, len(result.trace.threads)) == (count, 2)


def test_which_of_two_stop_strings_is_first_does_not_depend_on_what_is_decoded_together():
    """Read token by token the shorter one is complete first; read as a whole the longer one begins first."""
    text = "<async>1</async>"
    stops = ("Seine. Rome lies", "Rome")
    for document in (f"{CHUNK}", f'<promise topic="a" tokens="20"/>{text}{CHUNK}'):
        ids = [*CODEC.encode(parse(document)), CODEC.eos_id]
        request = Request([5, 6, 7], forced=ids, sampling=SamplingParams(stop=stops), limits=Limits())
        for config in (PLAIN, HELP):
            found = Engine(LOADED, config).generate(request)
            assert found.text.endswith("Paris lies on the Seine. ")


def fields(sampling):
    return {
        name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "seed", "promise_bias")
    }


@pytest.mark.slow
def test_log_probabilities_are_reported_for_every_token_and_the_same():
    asked = requests(0, logprobs=2)

    def reported(config):
        engine, seen = Engine(LOADED, config), {}
        for request in asked:
            engine.submit(request)
        while engine.has_work:
            for event in engine.step():
                if isinstance(event, TokenEvent):
                    seen.setdefault((event.request_id, event.path), []).append((event.token, event.logprobs))
        return seen

    plain, helped = reported(PLAIN), reported(HELP)
    assert plain.keys() == helped.keys()
    for key, events in plain.items():
        assert [token for token, _ in helped[key]] == [token for token, _ in events]
        for (_, found), (_, expected) in zip(helped[key], events, strict=True):
            assert found.chosen == pytest.approx(expected.chosen, abs=1e-4)


@pytest.mark.slow
def test_a_cancelled_request_disturbs_no_other():
    asked, plain = requests(1), answers(1, PLAIN)
    engine, results = Engine(LOADED, HELP), {}
    for request in asked:
        engine.submit(request)
    while engine.has_work:
        results |= {e.request_id: e.result for e in engine.step() if isinstance(e, DoneEvent)}
        if engine.num_steps == 5:
            engine.cancel("2")
    assert {key: same(result) for key, result in results.items()} == {
        key: same(result) for key, result in plain.items() if key != "2"
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_replay_feeds_the_same_document_in_fewer_steps(seed):
    ids = [*CODEC.encode(random_document(seed, depth=3)), CODEC.eos_id]
    limits = Limits(max_depth=9, max_tokens=100_000, max_chunk_tokens=100_000)
    request = Request([5, 6, 7], limits=limits, forced=ids)
    config = {**SIZES, "slot_tokens": 1024}
    plain = Engine(LOADED, EngineConfig(**config, jump_forward=False, drafts=0)).generate(request)
    helped = Engine(LOADED, EngineConfig(**config)).generate(request)
    assert same(helped) == same(plain)
    assert helped.steps < plain.steps == plain.critical_path


REPEATS = [*CODEC.encode_text("Paris lies on the Seine. Rome lies on the Tiber. " * 4), CODEC.eos_id]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_text_that_repeats_is_drafted(temperature):
    """A replay's tokens are known, so that all drafts of a repetition are right."""
    engine = Engine(LOADED, EngineConfig(**SIZES, drafts=4))
    sampling = SamplingParams(temperature=temperature)
    result = engine.generate(Request([5, 6, 7], parallel=False, forced=REPEATS, sampling=sampling))
    assert list(result.response_ids) == REPEATS
    assert result.steps < 0.6 * len(REPEATS)
    assert engine.drafter.num_accepted > 0.6 * engine.drafter.num_drafted > 20


def test_a_request_can_have_no_drafts():
    engine = Engine(LOADED, EngineConfig(**SIZES, drafts=4))
    result = engine.generate(Request([5, 6, 7], parallel=False, forced=REPEATS, drafts=False))
    assert result.steps == result.critical_path == len(REPEATS)
    assert engine.drafter.num_drafted == 0


@pytest.mark.slow
def test_drafts_that_were_wrong_are_seen_by_no_later_token(monkeypatch):
    """Whatever stands in the cache in their places, and places are used again."""
    asked, plain = requests(3), answers(3, PLAIN)
    engine, places = Engine(LOADED, HELP), []
    hide = engine.runner.hide

    def poison(slot, hidden):
        first = slot * (SIZES["slot_tokens"] + 1)
        for block in (*engine.runner.cache.keys, *engine.runner.cache.values):
            block[:, [first + place for place in hidden]] = 1e4
        places.append((slot, tuple(hidden)))
        hide(slot, hidden)

    monkeypatch.setattr(engine.runner, "hide", poison)
    results = {result.request_id: result for result in engine.decode(asked)}
    assert {key: same(result) for key, result in results.items()} == {
        key: same(result) for key, result in plain.items()
    }
    assert engine.drafter.num_drafted > engine.drafter.num_accepted > 0
    used = [place for place in places if place[1]]
    assert len(used) > len(set(used))


def test_a_full_slot_has_no_room_for_drafts():
    ids = REPEATS[:40] + [CODEC.eos_id]
    request = Request([5, 6, 7], parallel=False, forced=ids)
    engine = Engine(LOADED, EngineConfig(**{**SIZES, "slot_tokens": 3 + len(ids) + 1}, drafts=30))
    assert list(engine.generate(request).response_ids) == ids
    assert max(engine.runner.num_tokens) <= 3 + len(ids) + 1


def test_logits_of_drafted_rows_are_the_training_forwards(monkeypatch):
    actual, result = engine_logits(LOADED, [5, 6, 7], REPEATS, EngineConfig(**SIZES, drafts=4), monkeypatch)
    expected = training_logits(LOADED, [5, 6, 7], REPEATS)
    right = {key: logits for key, logits in actual.items() if key[1] < len(REPEATS)}
    assert right.keys() == expected.keys()
    assert max((right[key] - expected[key]).abs().max().item() for key in right) <= 1e-4
    assert result.steps < len(REPEATS)
