"""What a response tells the homes of its chunks, and in which order; tests/serve/interpreter/test_dispatch.py has whole
answers on real engines."""

import asyncio
from types import SimpleNamespace

from pasta.interpreter import Limits
from serve.calls.replicas import ReplicaLost
from serve.interpreter.dispatch import Attempt
from serve.interpreter.response import DistributedResponse
from serve.wire import Decoded, DecodeOrder

LIMITS = Limits(max_tokens=100)
DECODED = Decoded("stop", 0, 0.0, 0.0, 0.0)


class SlowToAdopt:
    """Decoders that are called over a network: an adoption, a longer message than others, takes longer."""

    def __init__(self):
        self.said = []

    async def call(self, method, model, request_id, path, *args, replica):
        if method == "adopt":
            await asyncio.sleep(0.05)
        self.said.append((method, path))


def test_a_home_knows_a_chunk_that_was_lost_before_those_inside_it_come_back():
    """A home that did not know it would refuse what comes back, and the answer would fail."""

    async def scenario():
        decoders, tasks = SlowToAdopt(), []

        def spawn(work):
            tasks.append(asyncio.create_task(work))
            return tasks[-1]

        dispatcher = SimpleNamespace(
            decoders=decoders,
            spawn=spawn,
            prefixes=lambda order: [],
            count=lambda what: None,
            lanes=SimpleNamespace(changed=lambda response: None),
        )
        session = SimpleNamespace(tokens=[], ended=False, chunk_ids=lambda path: [1])
        order = DecodeOrder("r", "tiny", [5], LIMITS, parallel=True, sampling=None)
        response = DistributedResponse(dispatcher, order, session)
        paths = {(): "a", (0,): "b", (0, 0): "c", (1,): "c"}
        attempts = [Attempt(path, replica, order, 0.0) for path, replica in paths.items()]
        response.attempts = {attempt.path: attempt for attempt in attempts}
        home, outer, inner, other = attempts
        home.started.set()
        await response._handle(outer, ReplicaLost("b is gone"))
        await response._handle(inner, DECODED)
        await response._handle(other, DECODED)
        await asyncio.gather(*tasks)
        return decoders.said

    said = asyncio.run(scenario())
    assert said == [("absorb", (1,)), ("adopt", (0,)), ("absorb", (0, 0))]
