"""The Decoder deployment: hosts the engines and reports tokens as they come."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import perf_counter
from typing import Any

import torch

from pasta.engine import (
    AsyncEngine,
    DoneEvent,
    Engine,
    EngineConfig,
    EngineStopped,
    Event,
    Request,
    SamplingParams,
    TokenEvent,
    load_model,
)
from pasta.errors import UserError
from pasta.interpreter import Limits
from serve.config import ServeConfig
from serve.wire import Decoded, DecodeOrder, Refused, TokenItem


class Decoder:
    """One replica: an engine for each served model, each stepping in a thread of its own."""

    async def __init__(self, config: ServeConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        torch.set_num_threads(config.decoder.threads)
        self._engines: dict[str, AsyncEngine] = {}
        self._stopped: str | None = None
        self._cancelling: set[asyncio.Task[Any]] = set()
        self._num_finished = self._num_cancelled = 0
        for name, model in config.models.items():
            loaded = load_model(model.location, dtype=model.dtype, device=model.device)
            engine = Engine(loaded, EngineConfig(**config.engine.model_dump()))
            _warm_up(engine)
            self._engines[name] = AsyncEngine(engine)
            await self._engines[name].start()

    async def decode(self, order: DecodeOrder) -> AsyncGenerator[list[TokenItem] | Decoded | Refused, None]:
        """Decode one response: batches of whatever tokens there are, then ``Decoded``.

        Leaving the iteration early cancels the request in the engine.
        """
        engine = self._engines[order.model]
        submitted = perf_counter()
        decoding = True
        try:
            request_id = await engine.submit(_request(order))
            async with aclosing(engine.events(request_id)) as batches:  # type: ignore[type-var]
                async for batch in batches:
                    tokens, done = _split(batch, submitted)
                    decoding = done is None
                    if tokens:
                        yield tokens
                    if done is not None:
                        yield self._decoded(done)
        except UserError as error:
            decoding = False
            yield Refused(str(error))
        except EngineStopped as error:
            decoding, self._stopped = False, str(error)
            raise
        finally:
            if decoding:
                self._cancel(engine, order.request_id)

    def _decoded(self, done: DoneEvent) -> Decoded:
        self._num_finished += 1
        result = done.result
        assert result is not None, "only a cancelled request has none, and nobody else cancels"
        return Decoded(result.finish_reason, result.steps, result.queue_s, result.ttft_s, result.total_s)

    def _cancel(self, engine: AsyncEngine, request_id: str) -> None:
        """Free a request's slot, also where its stream was left before the engine had answered."""
        self._num_cancelled += 1
        task = asyncio.get_running_loop().create_task(engine.cancel(request_id))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    def stats(self) -> dict[str, int]:
        """What this replica is doing (requests that decode, requests that wait, lanes in use) and has done."""
        engines = [engine.engine for engine in self._engines.values()]
        return {
            "active": sum(engine.num_active for engine in engines),
            "waiting": sum(engine.num_waiting for engine in engines),
            "lanes": sum(engine.num_lanes for engine in engines),
            "finished": self._num_finished,
            "cancelled": self._num_cancelled,
        }

    def check_health(self) -> None:
        """Serve restarts a replica whose engine has stopped."""
        if self._stopped is not None:
            raise RuntimeError(self._stopped)


def _request(order: DecodeOrder) -> Request:
    return Request(
        prompt_ids=order.prompt_ids,
        sampling=SamplingParams(
            temperature=order.temperature,
            top_p=order.top_p,
            seed=order.seed,
            stop=order.stop,
            promise_bias=order.promise_bias,
        ),
        limits=order.limits,
        parallel=order.parallel,
        logprobs=order.logprobs,
        request_id=order.request_id,
    )


def _split(batch: list[Event], submitted: float) -> tuple[list[TokenItem], DoneEvent | None]:
    tokens = [_item(event, submitted) for event in batch if isinstance(event, TokenEvent)]
    last = batch[-1]
    return tokens, last if isinstance(last, DoneEvent) else None


def _item(event: TokenEvent, submitted: float) -> TokenItem:
    item = (event.thread, event.token, event.time - submitted)
    return item if event.logprobs is None else (*item, (event.logprobs.chosen, event.logprobs.top))


def _warm_up(engine: Engine) -> None:
    """Two short answers with a few threads: first steps compile and allocate, no user should wait for that."""
    prompt = engine.codec.encode_prompt([{"role": "user", "content": "Hello"}])
    for _ in range(2):
        limits = Limits(max_tokens=60, max_threads=3, max_chunk_tokens=16)
        engine.generate(Request(prompt, sampling=SamplingParams(promise_bias=30.0), limits=limits))
