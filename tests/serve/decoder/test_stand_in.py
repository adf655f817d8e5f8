"""The stand-in for a Decoder says what a Decoder says, at the pace that it is given."""

import asyncio
from time import perf_counter

import pytest

from pasta.interpreter import Limits
from serve.config import ServeConfig
from serve.decoder.stand_in import StandInDecoder
from serve.interpreter.session import Session
from serve.wire import Decoded, DecodeOrder, SamplingParams
from tests.support.models import tiny
from tests.support.service import save_tiny_model

CODEC = tiny().codec
PROMPT = CODEC.encode_prompt([{"role": "user", "content": "Hello"}])
LIMITS = Limits(max_tokens=41)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    model = save_tiny_model(tmp_path_factory.mktemp("model") / "model")
    return ServeConfig(
        models={"tiny": {"path": str(model)}}, decoder={"stand_in_ms": 2.0, "stream_interval_ms": 6.0}
    )


def decoded(config):
    async def run():
        decoder = StandInDecoder.__new__(StandInDecoder)
        await decoder.__init__(config)
        order = DecodeOrder(
            request_id="r",
            model="tiny",
            prompt_ids=PROMPT,
            limits=LIMITS,
            parallel=False,
            sampling=SamplingParams(),
        )
        begun = perf_counter()
        messages = [message async for message in decoder.decode(order)]
        return messages, perf_counter() - begun, await decoder.stats()

    return asyncio.run(run())


def test_it_writes_as_much_as_a_request_allows_at_its_pace(config):
    messages, seconds, stats = decoded(config)
    session, text = Session(CODEC, PROMPT, LIMITS, parallel=False), ""
    assert messages[0] == [[]]
    for (tokens,) in messages[1:-1]:
        assert 1 <= len(tokens) <= 3
        text += session.feed(tokens).text
    (end,) = messages[-1]
    assert isinstance(end, Decoded)
    assert end.finish_reason == "length"
    assert text.startswith("The answer is written")
    assert len(session.tokens) == 40
    assert seconds >= 0.08
    assert stats["open"] == 0
