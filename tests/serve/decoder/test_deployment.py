"""A Decoder forgets what is cancelled, whenever that happens."""

import asyncio
import dataclasses
import logging
import threading

import pytest

from pasta.engine import DoneEvent, TokenEvent
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


class RequestStub:
    """What an order becomes for the engine."""

    def replace(self, structure):
        return self


class Engine:
    """Remembers what it was given."""

    def __init__(self):
        self.submitted = []

    async def submit(self, request):
        self.submitted.append(request)
        return "r"

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


class Decoding(Engine):
    """Decodes one token of a request, and then says that it is cancelled."""

    async def events(self, request_id):
        yield [TokenEvent(request_id, 0.0, 1, 0, 7, ())]
        yield [DoneEvent(request_id, 0.0, 1, 0, "cancelled", None)]


@pytest.mark.parametrize("left", [True, False], ids=["left", "cancelled"])
def test_a_decoder_that_took_part_in_an_answer_that_was_given_up_has_a_line_of_it(left, caplog, monkeypatch):
    monkeypatch.setattr(Decoder, "_request", lambda *_: RequestStub())

    async def scenario():
        decoder = Decoder.__new__(Decoder)
        decoder._engines, decoder._structures = {"m": Decoding()}, {}
        decoder._leases, decoder._interpreters = Leases(10.0), Interpreters(10.0)
        decoder._num_cancelled, decoder._cancelling = 0, set()
        stream = decoder.decode(dataclasses.replace(ORDER, grammar=None, http_request_id="my-id"))
        assert await anext(stream) == [[]]
        assert await anext(stream)
        if left:
            await stream.aclose()
        else:
            assert await anext(stream, "over") == "over"

    caplog.set_level(logging.INFO, "ray.serve")
    asyncio.run(scenario())
    (line,) = (each for each in caplog.records if each.name == "ray.serve")
    assert (line.getMessage(), line.request, line.attempt, line.model) == ("cancelled", "my-id", "r", "m")
