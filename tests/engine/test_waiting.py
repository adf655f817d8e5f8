"""A step waits for its device once, when what it has chosen, guessed and measured comes back together."""

import copy
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pasta.engine import (
    Engine,
    EngineConfig,
    Request,
    SamplingParams,
    TokenEvent,
    choosing,
    kernels,
    random_model,
)
from pasta.engine.heads import HeadRunner
from pasta.engine.step_cost import StepCost
from pasta.engine.transfer import Stopwatch
from tests.engine.test_graphs import CODEC, SIZES, captured, requests
from tests.engine.test_heads import made
from tests.support.models import CONFIGS, tiny
from tests.support.no_waiting import NoWaiting
from tests.support.tokenizers import byte_level

PENALTIES = {"frequency_penalty": 0.5, "repetition_penalty": 1.1, "min_tokens": 5, "logit_bias": ((65, 2.0),)}


def with_heads(family="llama"):
    loaded = tiny(family)
    return replace(loaded, heads=HeadRunner(made(), loaded.model))


def ahead(engine):
    """Have the heads of an engine on a CPU guess as they do elsewhere."""
    engine.runner.guesses_ahead = True
    return engine


def of_every_kind():
    """Greedy, sampled, penalised ones, and one that wants log-probabilities of its prompt and its answer."""
    greedy, sampled, told = requests(25)[:3]
    _, _, _, penalised = requests(25, temperature=0.8, top_k=20, **PENALTIES)
    sampled = sampled.replace(sampling=SamplingParams(temperature=0.9, top_p=0.8, promise_bias=6.0))
    return [greedy, sampled, told.replace(logprobs=2, prompt_logprobs=1), penalised]


def waits(engine, asked):
    """How often an engine waits for its device beyond once a forward and once for a token chosen anew."""
    expected = []
    forward, choose = engine.runner.forward, engine._chooser.choose

    def counted(numbers, feeds, sees, choices, *more):
        expected.extend([1] * bool(choices.numbers.shape[1]))
        return forward(numbers, feeds, sees, choices, *more)

    engine.runner.forward = counted
    engine._chooser.choose = lambda *row: expected.append(1) or choose(*row)
    for request in asked:
        engine.submit(request)
    with NoWaiting() as watch:
        while engine.has_work:
            for event in engine.step():
                assert getattr(event, "error", None) is None
    assert expected
    return watch.num_copies - len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("family", CONFIGS)
def test_a_step_waits_for_the_device_once(family, monkeypatch, every_draft):
    monkeypatch.setattr(kernels, "ready", lambda: False)
    engine = ahead(Engine(with_heads(family), EngineConfig(**SIZES)))
    assert waits(engine, of_every_kind()) == 0
    assert engine.drafter.num_drafted > 20


@pytest.mark.slow
def test_a_captured_step_waits_for_the_device_once(few, every_draft):
    engine, stand_in = captured(with_heads())
    before = stand_in.num_replayed
    assert waits(engine, of_every_kind()) == 0
    assert stand_in.num_replayed > before


@pytest.mark.parametrize(
    ("waits", "said"),
    [
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.cpu(), "cpu"),
        (lambda x: x[0].item(), "item"),
        (lambda x: bool(x[0]), "__bool__"),
        (lambda x: range(3)[x[0]], "__index__"),
        (lambda x: 1 in x, "__contains__"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: torch.nn.functional.one_hot(x), "_local_scalar_dense"),
        (lambda x: x[x > 1], "index by a mask"),
        (lambda x: x[[0, 1]], "copied to the device"),
        (lambda x: x.new_tensor([1]), "pinned"),
        (lambda x: torch.tensor([1], device=x.device), "pinned"),
    ],
)
def test_the_watch_sees_what_waits(waits, said):
    with NoWaiting(), pytest.raises(AssertionError, match=said):
        waits(torch.arange(3))


def test_the_watch_sees_copies_that_wait():
    with FakeTensorMode(), NoWaiting():
        there, here = torch.zeros(3, device="meta"), torch.zeros(3)
        here.to("meta", non_blocking=True)
        there.copy_(here, non_blocking=True)
        with pytest.raises(AssertionError, match="cpu to meta"):
            here.to("meta")
        with pytest.raises(AssertionError, match="cpu to meta"):
            there.copy_(here)
        with pytest.raises(AssertionError, match="meta to cpu"):
            here.copy_(there, non_blocking=True)


# -- on a device of which nothing can be read --------------------------------------------------------------


def dry(family="llama"):
    """A model on ``meta``, with one layer of each kind."""
    config = copy.deepcopy(CONFIGS[family])
    config.num_hidden_layers = 2
    if (kinds := getattr(config, "layer_types", None)) is not None:
        config.layer_types = kinds[:2]
    return random_model(config, byte_level(), device="meta")


@pytest.mark.slow
@pytest.mark.parametrize("family", CONFIGS)
def test_whole_steps_run_dry_on_another_device(family, monkeypatch):
    """All that a step touches is on the model's device: on ``meta``, what mixes devices or reads a value fails."""
    control, text = CODEC.control, CODEC.encode_text("ab")
    chunk = [*CODEC.encode_promise("a", 10), control.async_open, *text, control.async_close]
    document = [*chunk, control.sync, *text, CODEC.eos_id]
    sampling = SamplingParams(temperature=0.9, top_p=0.9, promise_bias=1.0)
    asked = [
        Request([5, 6, 7], forced=document, sampling=sampling, request_id=str(n), logprobs=n)
        for n in range(2)
    ]
    loaded, forced, said = dry(family), choosing._forced, []

    def told_apart(row, steps):
        tokens = forced(row, steps)
        said.extend(tokens)
        return tokens

    monkeypatch.setattr(choosing, "_forced", told_apart)

    def answer(count):
        told = [*said, *[0] * count][:count]
        said.clear()
        return told

    with FakeTensorMode(allow_non_fake_inputs=True), NoWaiting(answer):
        results = [*Engine(loaded, EngineConfig(**SIZES)).decode(asked)]
    assert [list(result.response_ids) for result in results] == [document] * 2


@pytest.mark.slow
def test_guesses_and_penalties_run_dry_on_another_device(every_draft):
    (always,) = CODEC.encode_text("a")
    sampling = SamplingParams(temperature=0.9, min_p=0.1, **PENALTIES)
    loaded = dry()
    loaded = replace(loaded, heads=HeadRunner(made().to("meta"), loaded.model))
    with FakeTensorMode(allow_non_fake_inputs=True), NoWaiting(lambda count: [always] * count):
        engine = Engine(loaded, EngineConfig(**SIZES))
        for number in range(2):
            engine.submit(
                Request([5, 6, 7], parallel=False, sampling=sampling, request_id=str(number)).replace(
                    logprobs=2, prompt_logprobs=2
                )
            )
        events = [event for _ in range(4) for event in engine.step()]
    assert {event.token for event in events} == {always}
    assert engine.drafter.num_accepted > 3


# -- guesses that come back with the tokens ---------------------------------------------------------------


def drafted(engine, asked):
    """What an engine answers, and how many of its drafts were right."""
    answers = {result.request_id: result.response_ids for result in engine.decode(asked)}
    return answers, engine.drafter.num_drafted, engine.drafter.num_accepted


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.9, "top_k": 30}, {"temperature": 0.9, **PENALTIES}]
)
def test_heads_guess_the_same_in_the_step_as_after_it(sampling, few, every_draft):
    asked, loaded = requests(40, **sampling), with_heads()
    after = drafted(Engine(loaded, EngineConfig(**SIZES)), asked)
    assert after[1] > 50
    assert drafted(ahead(Engine(loaded, EngineConfig(**SIZES))), asked) == after
    assert drafted(captured(loaded)[0], asked) == after


def test_heads_are_told_what_a_replay_says_and_not_what_is_chosen(few, every_draft):
    ids = [*CODEC.encode_text("The Seine flows to the sea."), CODEC.eos_id]
    asked = [Request([5, 6, 7], parallel=False, forced=ids)]
    loaded = with_heads()
    after = drafted(Engine(loaded, EngineConfig(**SIZES)), asked)
    assert after[1] > 20
    assert drafted(captured(loaded)[0], asked) == after


@torch.inference_mode()
def test_captured_guesses_are_those_of_the_heads_whatever_is_in_the_padding():
    engine, stand_in = captured(with_heads())
    heads, hidden, tokens = engine.runner._heads, torch.randn(5, 32), torch.tensor([3, -1, 7, 11, 400])
    stand_in.poison()
    found, odds = engine.runner._guess_graphs.following(hidden, tokens)
    expected, expected_odds = heads.following(hidden, tokens)
    assert torch.equal(found, expected)
    assert torch.allclose(odds, expected_odds)


def test_guesses_run_eagerly_where_there_is_no_memory_to_capture_them(every_draft):
    engine, stand_in = captured(with_heads())
    full = type(stand_in)()
    full.memory = 3
    asked = requests(20)
    expected = drafted(engine, asked)
    small = Engine(with_heads(), EngineConfig(**SIZES), full)
    full.runner = small.runner
    assert drafted(small, asked) == expected
    assert not small.runner._guess_graphs._graphs


def test_nothing_is_guessed_where_no_request_wants_drafts(monkeypatch):
    engine = ahead(Engine(with_heads(), EngineConfig(**SIZES)))
    monkeypatch.setattr(engine.runner, "guess", lambda chosen: pytest.fail("guessed"))
    events = []
    engine.submit(requests(10)[0].replace(drafts=False))
    while engine.has_work:
        events += engine.step()
    assert sum(isinstance(event, TokenEvent) for event in events) == 10


def test_the_time_of_guesses_is_no_cost_of_a_step_s_rows(every_draft, monkeypatch):
    engine = ahead(Engine(with_heads(), EngineConfig(**SIZES)))
    seconds = []
    monkeypatch.setattr(StepCost, "add", lambda self, rows, spent: seconds.append(spent))
    monkeypatch.setattr(Stopwatch, "seconds", lambda self: 1000.0)
    engine.generate(requests(10)[0])
    assert max(seconds) < 0
    assert engine.drafter._ahead_s == 1000.0
