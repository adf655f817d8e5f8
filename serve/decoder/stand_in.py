"""A Decoder without a model: it writes one text at a set pace, to measure the service without its engines."""

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator
from time import perf_counter
from typing import Any

from pasta.lang import Codec
from serve.config import ServeConfig
from serve.decoder.autoscaling import LANES
from serve.decoder.leases import Interpreters
from serve.imports import uncollected, without_torch
from serve.wire import Decoded, DecodeOrder, Decoding, Told, Version

_FORMAT = {"name": "stand-in", "why": "decoder.stand_in_ms"}
_TEXT = "The answer is written at the pace that the configuration sets, whatever was asked. "


class StandInDecoder:
    """Answers every request in the place of :class:`serve.decoder.deployment.Decoder`: sequentially, and with as many
    tokens as the request allows."""

    async def __init__(self, config: ServeConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        with uncollected():
            without_torch()
        from transformers import AutoTokenizer

        assert config.decoder.stand_in_ms is not None
        self._step_s = config.decoder.stand_in_ms / 1000
        self._version = config.version
        # Tokens that are written within the interval go together.
        self._batch = max(1, round(config.decoder.stream_interval_ms / config.decoder.stand_in_ms))
        self._interpreters = Interpreters(config.decoder.lease_s)
        self._open: set[str] = set()
        self._ids = {
            name: Codec(
                AutoTokenizer.from_pretrained(model.location), sequential=model.mode == "sequential"
            ).encode_text(_TEXT)
            for name, model in config.models.items()
        }

    async def decode(self, order: DecodeOrder) -> AsyncGenerator[list[Decoding], None]:
        """Yield what a Decoder yields for an answer in one thread; a message has ``stream_interval_ms`` of tokens."""
        self._open.add(order.request_id)
        begun, ids = perf_counter(), itertools.cycle(self._ids[order.model])
        most = order.limits.max_tokens - 1  # the end of text is not among them
        try:
            yield [[]]
            for sent in range(0, most, self._batch):
                count = min(self._batch, most - sent)
                await asyncio.sleep(begun + (sent + count) * self._step_s - perf_counter())
                now = perf_counter() - begun
                yield [[((), next(ids), now) for _ in range(count)]]
            total_s = perf_counter() - begun
            yield [Decoded("length", most, 0.0, self._step_s, total_s, self._step_s)]
        finally:
            self._open.discard(order.request_id)

    async def cancel(self, model: str, request_id: str) -> None:
        """Nothing to do: closing the stream ends the answer."""

    async def renew(self, request_ids: list[str]) -> None:
        """Nothing to do: a stand-in has no leases."""

    async def tell(self, interpreter: str) -> Told:
        """Report no prefixes, and how many Interpreters there are."""
        return Told({}, 0, self._interpreters.seen(interpreter))

    async def version(self) -> Version:
        """As ``Decoder.version``."""
        return Version(self._version, dict.fromkeys(self._ids, _FORMAT["name"]))

    async def stats(self) -> dict[str, Any]:
        """As ``Decoder.stats``, without what only an engine has."""
        lanes = len(self._open)
        return {
            "active": lanes,
            "lanes": lanes,
            "open": lanes,
            "waiting": 0,
            "finished": 0,
            "cancelled": 0,
            "reaped": 0,
            "pid": os.getpid(),
            "version": self._version,
            "tensor_parallel": 1,
            "weights": {},
            "formats": dict.fromkeys(self._ids, _FORMAT),
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """As ``Decoder.record_autoscaling_stats``."""
        return {LANES: float(len(self._open))}
