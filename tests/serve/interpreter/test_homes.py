"""Where a main thread goes, without engines: a home has room, whoever holds the prompt."""

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest

from pasta.engine import SamplingParams
from pasta.interpreter import Limits
from serve.calls.replicas import known_replicas
from serve.config import ServeConfig
from serve.interpreter.dispatch import Dispatcher
from serve.wire import DecodeOrder, Told, Version

PROMPT = list(range(2048))
CONFIG = ServeConfig.model_validate(
    {"models": {"m": {"path": "x"}}, "engine": {"num_slots": 8, "slot_tokens": 4096}}
)


class Decoders:
    """A handle to Decoders that say their version, and nothing else."""

    def __init__(self, version):
        self._version = version

    def open(self):
        pass

    async def call(self, method, *_, replica):
        return Version(self._version, {"m": "float32"})


class Decoding:
    """A response whose only thread decodes on a replica."""

    def __init__(self, replica, prefixes=()):
        self.attempts = {(): SimpleNamespace(replica=replica, order=SimpleNamespace(model="m"))}
        self.prefixes = prefixes

    def lanes(self):
        return [attempt.replica for attempt in self.attempts.values()]


def order(request_id="r", **changes):
    return DecodeOrder(request_id, "m", PROMPT, Limits(), False, SamplingParams(), **changes)


def with_two_decoders(scenario, config=CONFIG):
    """Run ``scenario`` with a dispatcher that sees the Decoders a and b."""

    async def run():
        known_replicas("Decoder").update(frozenset())
        dispatcher = Dispatcher(Decoders(config.version), config)
        known_replicas("Decoder").update(frozenset("ab"))
        await dispatcher.ready()
        while len(dispatcher.replicas.replicas) < 2:
            await asyncio.sleep(0)
        return await scenario(dispatcher)

    return asyncio.run(run())


def home(dispatcher, asked):
    return dispatcher.home(asked, dispatcher.prefixes(asked), set())


@pytest.mark.parametrize(("on_a", "on_b", "expected"), [(7, 0, "a"), (8, 0, "b"), (20, 7, "b"), (9, 8, "a")])
@pytest.mark.parametrize("of_others", [0, 3], ids=["one Interpreter", "several"])
def test_no_request_waits_for_a_slot_while_another_decoder_has_one(on_a, on_b, expected, of_others):
    async def scenario(dispatcher):
        held = {"m": frozenset(name for _, name in dispatcher.prefixes(order()))}
        dispatcher.hear("a", Told(held, of_others, 2, {"m": of_others}))
        for replica in "a" * (on_a - of_others) + "b" * on_b:
            dispatcher.lanes.opened(Decoding(replica))
        return await home(dispatcher, order())

    assert with_two_decoders(scenario) == expected


def test_a_prompt_that_is_being_decoded_draws_the_same_prompt_until_its_answer_ends():
    async def scenario(dispatcher):
        first = Decoding("b", dispatcher.prefixes(order()))
        dispatcher.lanes.opened(first)
        during = await home(dispatcher, order()), await home(dispatcher, order(cache_salt="somebody else"))
        dispatcher.lanes.closed(first)
        return *during, await home(dispatcher, order())

    assert with_two_decoders(scenario) == ("b", "a", "a")


def test_a_prompt_whose_log_probabilities_are_wanted_is_computed_apart():
    async def scenario(dispatcher):
        dispatcher.lanes.opened(Decoding("b", dispatcher.prefixes(order("first", prompt_logprobs=0))))
        before = await home(dispatcher, order())
        dispatcher.lanes.opened(Decoding("b", dispatcher.prefixes(order())))
        return before, await home(dispatcher, order("second", prompt_logprobs=0))

    assert with_two_decoders(scenario) == ("a", "a")


def test_no_prompt_draws_another_where_decoders_reuse_none():
    engine = dataclasses.replace(CONFIG.engine, reuse_prefixes=False)
    without = CONFIG.model_copy(update={"engine": engine})

    async def scenario(dispatcher):
        dispatcher.lanes.opened(Decoding("b", dispatcher.prefixes(order())))
        return await home(dispatcher, order())

    assert with_two_decoders(scenario, without) == "a"
