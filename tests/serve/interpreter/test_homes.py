"""Where a main thread goes, without engines: a home has room, whoever holds the prompt."""

import asyncio
from types import SimpleNamespace

import pytest

from pasta.engine import SamplingParams
from pasta.interpreter import Limits
from pasta.placement import prefix_digests
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

    def open(self):
        pass

    async def call(self, method, *_, replica):
        return Version(CONFIG.version, {"m": "float32"})


class Decoding:
    """A response whose only thread decodes on a replica."""

    def __init__(self, replica):
        self.attempts = {(): SimpleNamespace(replica=replica, order=SimpleNamespace(model="m"))}

    def lanes(self):
        return [attempt.replica for attempt in self.attempts.values()]


@pytest.mark.parametrize(("on_a", "on_b", "home"), [(7, 0, "a"), (8, 0, "b"), (20, 7, "b"), (9, 8, "a")])
@pytest.mark.parametrize("of_others", [0, 3], ids=["one Interpreter", "several"])
def test_no_request_waits_for_a_slot_while_another_decoder_has_one(on_a, on_b, home, of_others):
    async def scenario():
        known_replicas("Decoder").update(frozenset())
        dispatcher = Dispatcher(Decoders(), CONFIG)
        known_replicas("Decoder").update(frozenset("ab"))
        await dispatcher.ready()
        while len(dispatcher.replicas.replicas) < 2:
            await asyncio.sleep(0)
        names = prefix_digests(PROMPT, CONFIG.engine.prefill_chunk, "")
        prefixes = {"m": frozenset(name for _, name in names)}
        dispatcher.hear("a", Told(prefixes, of_others, 2, {"m": of_others}))
        for replica in "a" * (on_a - of_others) + "b" * on_b:
            dispatcher.lanes.opened(Decoding(replica))
        order = DecodeOrder("r", "m", PROMPT, Limits(), False, SamplingParams())
        return await dispatcher.home(order, set())

    assert asyncio.run(scenario()) == home
