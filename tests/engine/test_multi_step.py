"""Steps that run together choose the tokens that they would choose one after another, in the same steps."""

import random

import pytest

from pasta.engine import DoneEvent, Engine, EngineConfig, Request, SamplingParams, TokenEvent
from pasta.engine import multi_step as module
from pasta.engine.device import DeviceState
from pasta.engine.multi_step import MultiStep
from pasta.engine.step_cost import Faster
from pasta.interpreter import Limits
from pasta.lang import parse
from tests.engine.test_help import repeating, requests, same
from tests.support.kernels import built, needs_kernels
from tests.support.models import tiny

pytestmark = needs_kernels
LOADED = tiny()
CODEC = LOADED.codec
SIZES = {"num_slots": 4, "slot_tokens": 512, "reuse_prefixes": False}
ONE_BY_ONE = EngineConfig(**SIZES, drafts=0, multi_step=False)
TOGETHER = EngineConfig(**SIZES, drafts=0)
PROMPT = CODEC.encode_prompt([{"role": "user", "content": "Tell me about France"}])


@pytest.fixture(autouse=True)
def library():
    built()


@pytest.fixture(autouse=True)
def together(monkeypatch):
    """How long a step takes, which varies, does not say how many run together."""
    monkeypatch.setattr(module, "MOST_SECONDS_TOGETHER", 1e9)


@pytest.fixture
def counted(monkeypatch):
    """The steps of each call that has run some together."""
    counts = []

    def forward(self, *arguments):
        lanes, steps = original(self, *arguments)
        counts.append(steps)
        return lanes, steps

    original = MultiStep.forward
    monkeypatch.setattr(MultiStep, "forward", forward)
    return counts


def decode(config, asked, at_once=None, loaded=LOADED):
    return {result.request_id: result for result in Engine(loaded, config).decode(asked, at_once)}


def alike(results):
    return {key: (*same(result), result.steps) for key, result in results.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_answers_are_the_same_and_take_as_many_steps(seed, counted):
    """Greedy and sampled, some cut to the likeliest tokens; nested, cut by limits."""
    asked = requests(seed)
    assert alike(decode(TOGETHER, asked, at_once=1)) == alike(decode(ONE_BY_ONE, asked, at_once=1))
    assert max(counted) == 16
    assert sum(counted) > 3 * len(counted)


@pytest.mark.slow
def test_an_answer_that_repeats_itself_ends_in_the_same_step(counted):
    alone, together = decode(ONE_BY_ONE, repeating(), at_once=1), decode(TOGETHER, repeating(), at_once=1)
    assert alike(together) == alike(alone)
    assert sum(result.finish_reason == "repetition" for result in alone.values()) > 3
    assert sum(counted) > 2 * len(counted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_answers_are_the_same_beside_others(seed, counted):
    asked = [request.replace(parallel=number % 4 == 0) for number, request in enumerate(requests(seed))]
    one_by_one = decode(ONE_BY_ONE, asked, at_once=1)
    together = decode(TOGETHER, asked)
    assert {key: same(result) for key, result in together.items()} == {
        key: same(result) for key, result in one_by_one.items()
    }
    assert sum(counted) > len(counted)


@pytest.mark.slow
def test_answers_are_the_same_where_requests_have_unlike_numbers_of_threads(counted, monkeypatch):
    """Then steps are flat."""
    rows, original = [], DeviceState.steps
    monkeypatch.setattr(
        DeviceState, "steps", lambda *args: rows.append((args[1].flat, args[3].flat)) or original(*args)
    )
    loaded = tiny(packed=True)
    for seed in range(3):
        one_by_one = decode(ONE_BY_ONE, requests(seed), at_once=1, loaded=loaded)
        together = decode(TOGETHER, requests(seed), loaded=loaded)
        assert {key: same(result) for key, result in together.items()} == {
            key: same(result) for key, result in one_by_one.items()
        }
    flat = [steps for (first, _), steps in zip(rows, counted, strict=True) if first]
    assert sum(flat) > len(flat) > len(rows) / 4
    assert any(first > second for first, second in rows), "the first step feeds more than the others"


@pytest.mark.slow
@pytest.mark.parametrize("jump", [False, True], ids=["", "jump-forward"])
def test_beside_drafts_the_tokens_stay_the_same(jump, counted, monkeypatch):
    """Whichever way is faster for the moment."""
    rng = random.Random(7)
    monkeypatch.setattr(Faster, "is_together", lambda self: rng.random() < 0.5)
    asked = requests(5)
    plain = decode(ONE_BY_ONE, asked, at_once=1)
    helped = decode(EngineConfig(**SIZES, drafts=4, jump_forward=jump), asked)
    assert {key: same(result) for key, result in helped.items()} == {
        key: same(result) for key, result in plain.items()
    }
    assert counted


@pytest.mark.slow
def test_an_answer_that_is_replayed_is_the_one_that_was_given():
    text = "Paris lies on the Seine. Rome lies on the Tiber. " * 3
    chunks = "".join(f'<promise topic="{name}" tokens="90"/><async>{text}{name}</async>' for name in "abc")
    ids = [*CODEC.encode(parse(f"{text}{chunks}<sync/>{text}")), CODEC.eos_id]
    request = Request(PROMPT, forced=ids, limits=Limits())
    one, together = (Engine(LOADED, config).generate(request) for config in (ONE_BY_ONE, TOGETHER))
    assert list(together.response_ids) == ids
    assert (same(together), together.steps) == (same(one), one.steps)


def test_a_token_has_the_time_and_the_number_of_its_own_step():
    engine = Engine(LOADED, TOGETHER)
    engine.submit(Request(PROMPT, limits=Limits(max_tokens=60), parallel=False))
    calls, tokens = 0, []
    while engine.has_work:
        tokens += [event for event in engine.step() if isinstance(event, TokenEvent)]
        calls += 1
    assert calls < len(tokens) / 2
    first = tokens[0].step
    assert [event.step for event in tokens] == list(range(first, first + len(tokens)))
    assert engine.num_steps == tokens[-1].step
    times = [event.time for event in tokens]
    assert times == sorted(set(times))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": 2},
        {"sampling": SamplingParams(repetition_penalty=1.3)},
    ],
    ids=["log-probabilities", "penalties"],
)
def test_what_python_has_to_do_for_each_token_is_done_for_each(fields, counted):
    limits = Limits(max_tokens=40)
    request = Request(PROMPT, limits=limits, parallel=False, request_id="0").replace(**fields)
    found = decode(TOGETHER, [request])
    assert alike(found) == alike(decode(ONE_BY_ONE, [request]))
    assert not counted


@pytest.mark.slow
def test_a_stop_string_ends_an_answer_where_it_would_end_it(counted):
    limits = Limits(max_tokens=90)
    plain = Engine(LOADED, ONE_BY_ONE).generate(Request(PROMPT, limits=limits, parallel=False))
    middle = plain.text[len(plain.text) // 2 :][:4]
    request = Request(PROMPT, limits=limits, parallel=False, sampling=SamplingParams(stop=(middle,)))
    one, together = (Engine(LOADED, config).generate(request) for config in (ONE_BY_ONE, TOGETHER))
    assert same(together) == same(one)
    assert together.finish_reason == "stop"
    assert counted


def beside_another(max_tokens):
    """The events of two requests, of which the second, of so many tokens, comes while the first decodes."""
    engine = Engine(LOADED, TOGETHER)
    engine.submit(Request(PROMPT, limits=Limits(max_tokens=100), parallel=False, request_id="first"))
    engine.step(), engine.step()
    engine.submit(Request(PROMPT, limits=Limits(max_tokens=max_tokens), parallel=False, request_id="second"))
    events = []
    while engine.has_work:
        events += engine.step()
    return events


def test_a_request_that_comes_is_admitted_between_steps_that_run_together():
    ended = [event.request_id for event in beside_another(5) if isinstance(event, DoneEvent)]
    assert ended == ["second", "first"]


def test_a_request_that_has_just_been_prefilled_waits_for_no_steps_of_others():
    tokens = [event for event in beside_another(50) if isinstance(event, TokenEvent)]
    steps = [event.step for event in tokens if event.request_id == "second"]
    assert steps == list(range(steps[0], steps[0] + 50))


def test_places_in_the_cache_that_no_step_needed_are_free_again():
    """A whole slot is left for an answer: what is planned and not run takes none of it."""
    engine = Engine(LOADED, EngineConfig(num_slots=1, slot_tokens=128, drafts=0, reuse_prefixes=False))
    asked = [
        request.replace(limits=Limits(max_tokens=100, max_threads=4)) for request in requests(2, count=4)
    ]
    for result in engine.decode(asked, at_once=1):
        assert result.num_tokens + result.prompt_tokens <= 128
        assert engine.runner.room(0) == 128


def test_steps_that_take_long_do_not_run_together(monkeypatch, counted):
    monkeypatch.setattr(module, "MOST_SECONDS_TOGETHER", 1e-9)
    Engine(LOADED, TOGETHER).generate(Request(PROMPT, limits=Limits(max_tokens=40)))
    assert not counted


def ways(faster, times, tokens_with_drafts):
    """The ways that are taken, if four tokens take 2 ms together and a step with drafts 2 ms."""
    taken = []
    for _ in range(times):
        taken.append(faster.is_together())
        faster.learn(4 if taken[-1] else tokens_with_drafts, 0.002, together=taken[-1])
    return taken


def test_the_faster_way_is_taken_and_the_other_tried_now_and_then():
    faster = Faster()
    slow_drafts = ways(faster, 400, 2)
    assert not any(slow_drafts[:4])
    assert 0.95 < sum(slow_drafts[20:]) / 380 < 1
    fast_drafts = ways(faster, 2000, 6)  # they are right more often from now on
    assert 0 < sum(fast_drafts[-1000:]) / 1000 < 0.05


def test_steps_with_topics_and_with_chunks_that_open_or_end_run_together(counted):
    text = "Paris lies on the Seine. "
    chunks = "".join(
        f'<promise topic="a long topic, {name}" tokens="30"/><async>{text * 2}</async>' for name in "abc"
    )
    ids = [*CODEC.encode(parse(f"{text}{chunks}<sync/>{text}")), CODEC.eos_id]
    request = Request(PROMPT, forced=ids, limits=Limits(max_topic_tokens=100))
    result = Engine(LOADED, TOGETHER).generate(request)
    assert list(result.response_ids) == ids
    # Not the prompt's last token, nor what this tokenizer spells of an estimate before it is forced: 3 tokens each.
    assert sum(counted) == result.steps - 10


@pytest.mark.slow
def test_what_is_streamed_of_each_thread_is_the_same(counted):
    """Also of tokens that are reported at once."""
    request = Request(PROMPT, limits=Limits(max_tokens=300))
    request = request.replace(sampling=SamplingParams(temperature=0.9, seed=4, promise_bias=6.0))

    def streamed(config):
        engine, found, last = Engine(LOADED, config), {}, 0.0
        engine.submit(request)
        while engine.has_work:
            for event in engine.step():
                assert last <= (last := event.time), "in the order of time"
                if isinstance(event, TokenEvent):
                    found.setdefault(event.path, []).append((event.token, event.step))
        return found

    one_by_one, together = streamed(ONE_BY_ONE), streamed(TOGETHER)
    assert together == one_by_one
    assert len(together) > 2
    assert counted


@pytest.mark.slow
def test_steps_together_without_other_help_keep_the_order_of_turns_near_a_limit():
    config = {**SIZES, "jump_forward": False, "drafts": 0}
    limits = Limits(max_tokens=97, max_chunk_tokens=200, max_depth=3, max_topic_tokens=1)
    sampling = SamplingParams(temperature=0.7, top_k=5, seed=6754, promise_bias=4.0)
    request = Request(PROMPT, limits=limits, sampling=sampling)
    one = Engine(LOADED, EngineConfig(**config, multi_step=False)).generate(request)
    engine = Engine(LOADED, EngineConfig(**config))
    engine.generate(
        Request(PROMPT, limits=Limits(max_tokens=20), parallel=False)
    )  # it knows what a step costs
    assert same(engine.generate(request)) == same(one)
