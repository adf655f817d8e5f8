"""Methods answer a prompt in turn, in one process; what is timed, what is skipped, and what ends the work."""

from collections import Counter
from itertools import pairwise

import pytest

from pasta.benchmark.speed import decode_pair
from pasta.data.endpoint import EndpointError
from pasta.data.prompts import Prompt
from pasta.engine import Engine, EngineConfig
from pasta.errors import UserError
from pasta.evaluation.methods.answers import Answer
from pasta.evaluation.methods.decode import decode_prompt, turns
from pasta.evaluation.methods.make import EngineMethod
from pasta.evaluation.prompts import EvalPrompt
from pasta.interpreter import Limits
from tests.support.models import tiny

LIMITS = Limits(max_tokens=60, max_chunk_tokens=12)
ENTRY = EvalPrompt(Prompt([{"role": "user", "content": "Name two rivers."}]), "rivers", True)


def engine(seed: int = 0, slot_tokens: int = 256) -> Engine:
    return Engine(tiny(seed=seed), EngineConfig(num_slots=1, slot_tokens=slot_tokens))


class Watched:
    """A method that keeps what it answers."""

    def __init__(self, method: EngineMethod, calls: list[Answer]) -> None:
        self._method, self._calls = method, calls

    def answer(self, prompt: Prompt) -> Answer:
        self._calls.append(self._method.answer(prompt))
        return self._calls[-1]


def methods(calls: dict[str, list[Answer]] | None = None) -> dict[str, Watched]:
    """A twin and another model that opens promises."""
    made = {
        "twin": EngineMethod(engine(), LIMITS, parallel=False),
        "pasta": EngineMethod(engine(seed=1), LIMITS, parallel=True, promise_bias=8.0),
    }
    calls = {} if calls is None else calls
    return {name: Watched(method, calls.setdefault(name, [])) for name, method in made.items()}


@pytest.mark.slow
def test_each_method_answers_once_to_warm_up_and_is_then_timed():
    calls: dict[str, list[Answer]] = {}
    record = decode_prompt(methods(calls), ENTRY, repeats=3)
    for name, answer in record["answers"].items():
        assert len(calls[name]) == 4
        assert answer["seconds"] == [run.seconds[0] for run in calls[name][1:]]
        assert min(run.ttft_s for run in calls[name][1:]) <= answer["ttft_s"] <= min(answer["seconds"])


@pytest.mark.slow
def test_with_no_repeats_nothing_is_timed():
    calls: dict[str, list[Answer]] = {}
    record = decode_prompt(methods(calls), ENTRY, repeats=0)
    assert [len(runs) for runs in calls.values()] == [1, 1]
    assert all(answer["seconds"] == [] for answer in record["answers"].values())
    assert all(answer["ttft_s"] is None for answer in record["answers"].values())


@pytest.mark.slow
def test_a_record_holds_the_prompt_and_the_methods_in_their_order():
    record = decode_prompt(methods(), ENTRY, repeats=0)
    assert record["messages"] == ENTRY.prompt.messages
    assert (record["family"], record["independent"]) == ("rivers", True)
    assert [*record["answers"]] == ["twin", "pasta"]


@pytest.mark.slow
def test_an_evaluation_decodes_what_the_benchmark_decodes():
    made = {
        "twin": EngineMethod(engine(), LIMITS, parallel=False),
        "pasta": EngineMethod(engine(seed=1), LIMITS, parallel=True),
    }
    answers = decode_prompt(made, ENTRY, repeats=1)["answers"]
    prompt = tiny().codec.encode_prompt(ENTRY.prompt.messages)
    pair, twin, pasta = decode_pair(engine(), engine(seed=1), prompt, LIMITS, repeats=0)
    for name, result in (("twin", twin), ("pasta", pasta)):
        assert answers[name]["text"] == result.text
        assert answers[name]["tokens"] == pair[name]["tokens"]
        assert answers[name]["critical_path"] == pair[name]["critical_path"]


@pytest.mark.slow
def test_a_bias_opens_promises_that_the_model_would_not():
    def threads(bias: float) -> int:
        method = EngineMethod(engine(), LIMITS, parallel=True, promise_bias=bias)
        return len(method.answer(ENTRY.prompt).threads)

    assert threads(-30.0) == 1
    assert threads(8.0) > 1


@pytest.mark.slow
def test_a_method_that_cannot_take_the_prompt_is_skipped_and_the_others_are_not():
    made = methods() | {"small": EngineMethod(engine(slot_tokens=16), LIMITS, parallel=False)}
    answers = decode_prompt(made, ENTRY, repeats=1)["answers"]
    assert answers["small"] == {"skipped": answers["small"]["skipped"]}
    assert "the context holds 16; shorten the prompt" in answers["small"]["skipped"]
    assert answers["twin"]["seconds"]


@pytest.mark.slow
def test_a_method_that_takes_the_prompt_the_first_time_only_is_skipped_too():
    class Fickle(Watched):
        def answer(self, prompt: Prompt) -> Answer:
            if self._calls:
                raise UserError("prompt: the endpoint does not take it")
            return super().answer(prompt)

    made = methods() | {"fickle": Fickle(EngineMethod(engine(), LIMITS, parallel=False), [])}
    answers = decode_prompt(made, ENTRY, repeats=2)["answers"]
    assert answers["fickle"] == {"skipped": "prompt: the endpoint does not take it"}
    assert len(answers["twin"]["seconds"]) == 2


@pytest.mark.slow
def test_an_endpoint_that_answers_nobody_ends_the_work():
    class Gone:
        def answer(self, prompt: Prompt) -> Answer:
            raise EndpointError("endpoint http://127.0.0.1:9/v1: refused", 401)

    with pytest.raises(EndpointError):
        decode_prompt({**methods(), "gone": Gone()}, ENTRY, repeats=1)


def test_every_round_has_its_order_and_none_always_follows_the_same_one():
    names = ["a", "b", "c"]
    orders = [
        turns(names, Prompt([{"role": "user", "content": str(n)}]), number)
        for n in range(50)
        for number in (0, 1)
    ]
    assert all(sorted(order) == names for order in orders)
    first = Counter(order[0] for order in orders)
    follows = Counter(pair for order in orders for pair in pairwise(order))
    assert min(first[name] for name in names) > 20
    assert min(follows[x, y] for x in names for y in names if x != y) > 20
    assert turns(names, ENTRY.prompt, 0) == turns(names, ENTRY.prompt, 0)
