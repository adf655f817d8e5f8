"""A Decoder forgets what is cancelled, whenever that happens."""

import asyncio
import threading

from pasta.engine.structure import Grammar
from pasta.interpreter import Limits
from serve.decoder.deployment import Decoder
from serve.decoder.leases import Interpreters, Leases
from serve.wire import DecodeOrder, SamplingParams

ORDER = DecodeOrder(
    request_id="r",
    model="m",
    prompt_ids=[1],
    limits=Limits(max_tokens=8),
    parallel=False,
    sampling=SamplingParams(),
    grammar=Grammar("regex", "a"),
)


class Engine:
    """Remembers what it was given."""

    def __init__(self):
        self.submitted = []

    async def submit(self, request):
        self.submitted.append(request)

    async def cancel(self, request_id):
        pass

    leave = cancel


class Compiling:
    """A compiler that takes as long as it is told to."""

    def __init__(self):
        self.begun, self.end = threading.Event(), threading.Event()

    def compile(self, grammar):
        self.begun.set()
        assert self.end.wait(10)


def test_what_is_cancelled_while_its_grammar_compiles_is_never_decoded():
    async def scenario():
        decoder, engine, compiling = Decoder.__new__(Decoder), Engine(), Compiling()
        decoder._engines, decoder._structures = {"m": engine}, {"m": compiling}
        decoder._leases, decoder._interpreters = Leases(10.0), Interpreters(10.0)
        decoder._num_cancelled, decoder._cancelling, decoder._costs = 0, set(), {"m": None}
        reading = asyncio.create_task(anext(decoder.decode(ORDER), "over"))
        await asyncio.to_thread(compiling.begun.wait, 10)
        await decoder.cancel("m", "r")
        compiling.end.set()
        assert await reading == "over"
        assert not engine.submitted
        assert len(decoder._leases) == 0

    asyncio.run(scenario())
