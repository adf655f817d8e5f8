"""The Decoder deployment: hosts the engines and reports tokens as they come."""

import asyncio
import dataclasses
import logging
import os
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from time import perf_counter
from typing import Any

import torch

from pasta.engine import (
    AsyncEngine,
    DoneEvent,
    Engine,
    EngineConfig,
    EngineFull,
    EngineStopped,
    Event,
    ForkEvent,
    LaneCosts,
    Progress,
    Request,
    Result,
    SamplingParams,
    TokenEvent,
    UnknownRequest,
    load_model,
    measure_costs,
)
from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.placement import POLICIES, Home
from serve.calls.replicas import ReplicaLost
from serve.config import ServeConfig
from serve.decoder import priority
from serve.decoder.autoscaling import LANES
from serve.decoder.leases import Leases
from serve.errors import failed
from serve.observe import logs
from serve.observe.metrics import ENGINE, Metrics, Reporter
from serve.wire import Decoded, DecodeOrder, Decoding, Lent, Path, Refused, TokenItem

logger = logging.getLogger("ray.serve")


class Decoder:
    """One replica: an engine for each served model, each stepping in a thread of its own."""

    async def __init__(self, config: ServeConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        torch.set_num_threads(config.decoder.threads)
        priority.give_way()
        self._version = config.version
        self._engines: dict[str, AsyncEngine] = {}
        self._stopped: str | None = None
        self._cancelling: set[asyncio.Task[Any]] = set()
        self._num_finished = self._num_cancelled = self._num_reaped = 0
        self._costs: dict[str, LaneCosts] = {}
        self._leases = Leases(config.decoder.lease_s)
        self._metrics = Metrics(ENGINE)
        for name, model in config.models.items():
            loaded = load_model(model.location, dtype=model.dtype, device=model.device)
            engine = Engine(loaded, EngineConfig.of(config.engine))
            try:
                _warm_up(engine)
            except ArithmeticError as error:
                raise UserError(
                    f"models.{name}: {error}; expected whole weights, and a dtype that holds them"
                ) from error
            self._costs[name] = _costs(engine, config)
            self._engines[name] = AsyncEngine(engine, config.decoder.stream_interval)
            with priority.first():
                await self._engines[name].start()
        engines = {name: engine.engine for name, engine in self._engines.items()}
        reports = Reporter(self._metrics.record).engines(engines, config.engine.num_slots)
        self._reporting = asyncio.create_task(reports)

    async def decode(self, order: DecodeOrder) -> AsyncGenerator[list[Decoding], None]:
        """Decode one response, or a chunk of one: no tokens when it is taken, then in lists what comes at once: tokens,
        ``Lent`` for each chunk that is to be decoded elsewhere, at last ``Decoded``.

        Leaving the iteration early cancels the request in the engine.
        """
        engine = self._engines[order.model]
        submitted = perf_counter()
        decoding, result = True, None
        self._leases.open(order.request_id, lambda: self._reap(engine, order))
        try:
            request_id = await engine.submit(self._request(order, engine))
            yield [[]]
            async with aclosing(engine.events(request_id)) as batches:  # type: ignore[type-var]
                async for batch in batches:
                    message, done = _message(batch, submitted)
                    decoding = done is None
                    if done is not None and done.error is not None:
                        message.append(self._failed(order, done.error))
                    elif done is not None and done.result is not None:
                        result = done.result
                        message.append(self._decoded(order.model, result))
                    if message:
                        yield message
        except EngineFull as error:
            decoding = False
            yield [Refused(str(error), status=503)]
        except UserError as error:
            decoding = False
            yield [Refused(str(error))]
        except EngineStopped as error:
            decoding, self._stopped = False, str(error)
            raise ReplicaLost(str(error)) from error
        finally:
            was_open = self._leases.close(order.request_id)
            if result is not None:  # written here, so that nobody's answer waits for it
                self._log(order, result)
            if decoding:
                self._num_cancelled += was_open
                # Also where the stream was left before the engine had answered.
                self._later(engine.leave(order.request_id))

    async def absorb(self, model: str, request_id: str, path: Path, response_ids: list[int]) -> None:
        """Take in a chunk of a response that decodes here, decoded elsewhere."""
        with _told():
            await self._engines[model].absorb(request_id, path, response_ids)

    async def adopt(
        self,
        model: str,
        request_id: str,
        path: Path,
        tokens: tuple[tuple[Path, int], ...],
        lent: dict[Path, Limits],
    ) -> None:
        """Decode a chunk of a response that decodes here, here after all: on from ``tokens``."""
        with _told():
            await self._engines[model].adopt(request_id, path, Progress(tokens, lent))

    async def cancel(self, model: str, request_id: str) -> None:
        """Stop what a client or its Interpreter has left."""
        if self._leases.close(request_id):
            self._num_cancelled += 1
            await self._engines[model].cancel(request_id)

    async def renew(self, request_ids: list[str]) -> None:
        """An Interpreter says what it still wants.

        A coroutine, as everything that touches leases or engines: Serve calls plain methods in other threads.
        """
        self._leases.renew(request_ids)

    def _reap(self, engine: AsyncEngine, order: DecodeOrder) -> None:
        self._num_reaped += 1
        self._metrics.count("pasta_leases_expired")
        logs.log(logger, "lease expired", order.http_request_id, logging.WARNING, attempt=order.request_id)
        self._num_cancelled += 1
        self._later(engine.cancel(order.request_id))

    def _request(self, order: DecodeOrder, engine: AsyncEngine) -> Request:
        policy, costs = POLICIES[order.placement], self._costs[order.model]
        visible = len(order.prompt_ids) + (len(order.snapshot.token_ids) if order.snapshot else 0)

        def stays(_: int, estimate: int) -> bool:
            home = Home(engine.engine.num_lanes, costs)
            return not policy.leaves(home, estimate, visible)

        return Request(
            prompt_ids=order.prompt_ids,
            snapshot=order.snapshot,
            sampling=SamplingParams(
                temperature=order.temperature,
                top_p=order.top_p,
                seed=order.seed,
                stop=order.stop,
                promise_bias=order.promise_bias,
            ),
            limits=order.limits,
            parallel=order.parallel,
            place_locally=None if order.placement == "local" else stays,
            lent=order.snapshot is not None,
            progress=Progress(order.tokens, order.lent),
            logprobs=order.logprobs,
            request_id=order.request_id,
        )

    def _decoded(self, model: str, result: Result) -> Decoded:
        self._num_finished += 1
        times = result.queue_s, result.ttft_s, result.total_s
        return Decoded(result.finish_reason, result.steps, *times, self._costs[model].step_s)

    def _failed(self, order: DecodeOrder, error: Exception) -> Refused:
        """What went wrong with this request alone: the same would happen on another replica."""
        logs.log(
            logger, "decoding failed", order.http_request_id, logging.ERROR, error, attempt=order.request_id
        )
        return Refused(failed().message, status=500)

    def _log(self, order: DecodeOrder, result: Result) -> None:
        logs.log(
            logger,
            "decoded",
            order.http_request_id,
            attempt=order.request_id,
            model=order.model,
            finish_reason=result.finish_reason,
            steps=result.steps,
            tokens=result.num_tokens,
            total_ms=round(result.total_s * 1000, 3),
        )

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def stats(self) -> dict[str, int]:
        """What this replica is doing (requests that decode, requests that wait, lanes in use) and has done.

        An answer spread over several replicas is a request on each.
        """
        engines = [engine.engine for engine in self._engines.values()]
        return {
            "active": sum(engine.num_active for engine in engines),
            "waiting": sum(engine.num_waiting for engine in engines),
            "lanes": sum(engine.num_lanes for engine in engines),
            "finished": self._num_finished,
            "cancelled": self._num_cancelled,
            "reaped": self._num_reaped,
            "open": len(self._leases),
            "pid": os.getpid(),
        }

    async def version(self) -> str:
        """What it decodes with (``ServeConfig.version``)."""
        return self._version

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """For serve/decoder/autoscaling.py: called by Serve."""
        stats = await self.stats()
        return {LANES: float(stats["lanes"] + stats["waiting"])}

    def check_health(self) -> None:
        """Serve restarts a replica whose engine has stopped."""
        if self._stopped is not None:
            raise RuntimeError(self._stopped)


@contextmanager
def _told() -> Iterator[None]:
    """Around what a response is told: if it does not decode here any longer, its own stream says what became of it."""
    try:
        yield
    except UnknownRequest:
        pass
    except EngineStopped as error:
        raise ReplicaLost(str(error)) from error


def _message(batch: list[Event], submitted: float) -> tuple[list[Decoding], DoneEvent | None]:
    tokens: list[TokenItem] = []
    lent: list[Lent] = []
    for event in batch:
        if isinstance(event, TokenEvent):
            tokens.append(_item(event, submitted))
        elif isinstance(event, ForkEvent) and event.lent is not None:
            lent.append(Lent(event.path, event.lent))
    last = batch[-1]
    return [*([tokens] if tokens else []), *lent], last if isinstance(last, DoneEvent) else None


def _costs(engine: Engine, config: ServeConfig) -> LaneCosts:
    measured = measure_costs(engine)
    knee = config.decoder.lane_knee
    return measured if knee is None else dataclasses.replace(measured, knee=knee)


def _item(event: TokenEvent, submitted: float) -> TokenItem:
    item = (event.path, event.token, event.time - submitted)
    return item if event.logprobs is None else (*item, (event.logprobs.chosen, event.logprobs.top))


def _warm_up(engine: Engine) -> None:
    """Two short answers with a few threads: first steps compile and allocate, no user should wait for that."""
    prompt = engine.codec.encode_prompt([{"role": "user", "content": "Hello"}])
    for _ in range(2):
        limits = Limits(max_tokens=60, max_threads=3, max_chunk_tokens=16)
        engine.generate(Request(prompt, sampling=SamplingParams(promise_bias=30.0), limits=limits))
