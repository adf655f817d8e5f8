"""The Decoder deployment: runs the engines and streams their tokens to the Interpreter."""

import asyncio
import dataclasses
import logging
import os
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from pasta.engine import (
    DoneEvent,
    EngineConfig,
    EngineFull,
    EngineStopped,
    Event,
    ForkEvent,
    LaneCosts,
    Request,
    Result,
    SamplingParams,
    ThreadProgress,
    TokenEvent,
    UnknownRequest,
)
from pasta.engine.head_files import weights_fingerprint
from pasta.engine.snapshots import model_directory
from pasta.engine.structure import Structures
from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.lang import has_chat_template
from pasta.placement import POLICIES, Home
from serve import priority
from serve.calls.replicas import ReplicaLost
from serve.config import ServeConfig
from serve.decoder.autoscaling import LANES
from serve.decoder.leases import Interpreters, Leases
from serve.errors import failed
from serve.followers import Followers
from serve.imports import uncollected
from serve.observe import logs
from serve.observe.metrics import ENGINE, Metrics, Reporter
from serve.wire import Decoded, DecodeOrder, Decoding, Lent, Path, Refused, TokenItem, Told, Version

if TYPE_CHECKING:
    from pasta.engine import AsyncEngine, Engine

logger = logging.getLogger("ray.serve")


class Decoder:
    """A replica with an engine for each served model; each engine steps in a thread of its own."""

    @logs.log_failed_start(logger)
    async def __init__(self, config: ServeConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        # Imported here: the process that starts the service imports this module too, and needs no engine.
        with uncollected():
            import torch

            from pasta.engine import AsyncEngine, Engine, load_model
        torch.set_num_threads(config.decoder.threads)
        priority.set_batch()
        self._version = config.version
        self._engines: dict[str, AsyncEngine] = {}
        self._structures: dict[str, Structures] = {}
        self._cancelling: set[asyncio.Task[Any]] = set()
        self._num_finished = self._num_cancelled = self._num_reaped = 0
        self._costs: dict[str, LaneCosts] = {}
        self._weights: dict[str, str] = {}
        self._leases = Leases(config.decoder.lease_s)
        self._interpreters = Interpreters(config.decoder.lease_s)
        self._metrics = Metrics(ENGINE)
        self._tensor_parallel = config.decoder.tensor_parallel
        self._followers = _followers(config)
        ranks = None if self._followers is None else await asyncio.to_thread(self._followers.meet)
        # The kernels' threads start while a model is loaded. As the engines' threads they run before all others.
        with priority.starting(batch=False):
            for name, model in config.models.items():
                loaded = load_model(
                    model.location,
                    dtype=model.dtype,
                    device=model.device,
                    sequential=model.mode == "sequential",
                    ranks=ranks,
                )
                logger.info("model %s decodes in %s: %s", name, loaded.format.name, loaded.format.why)
                if not has_chat_template(loaded.tokenizer):
                    logger.warning(
                        "model %s has no chat template: /v1/chat/completions refuses its requests", name
                    )
                if (directory := model_directory(model.location)) is not None:
                    self._weights[name] = weights_fingerprint(directory)
                engine = Engine(loaded, EngineConfig.of(config.engine))
                try:
                    _warm_up(engine)
                except ArithmeticError as error:
                    raise UserError(
                        f"models.{name}: {error}; expected whole weights, and a dtype that holds them"
                    ) from error
                self._costs[name] = _costs(engine, config)
                self._structures[name] = Structures(engine.codec)
                self._engines[name] = AsyncEngine(engine, config.decoder.stream_interval_ms / 1000)
                await self._engines[name].start()
        engines = {name: engine.engine for name, engine in self._engines.items()}
        reports = Reporter(self._metrics.record).engines(engines, config.engine.num_slots)
        self._reporting = asyncio.create_task(reports)

    async def decode(self, order: DecodeOrder) -> AsyncGenerator[list[Decoding], None]:
        """Decode one response, or a chunk of one.

        Yields ``[[]]`` when the engine has accepted it; then lists of all that is ready at once: lists of tokens,
        ``Lent`` for each chunk that another replica is to decode, last ``Decoded``. Or only ``Refused``. Raises
        ``ReplicaLost`` if the engine has stopped. Leaving the iteration early cancels the request in the engine.
        """
        engine = self._engines[order.model]
        submitted, submitted_at = perf_counter(), time()
        decoding, cancelled, result = True, False, None
        self._leases.open(order.request_id, lambda: self._reap(engine, order))
        self._interpreters.owners[order.request_id] = order.interpreter
        try:
            structure = None
            if order.grammar is not None:  # in another thread: it takes up to a second
                structure = await asyncio.to_thread(self._structures[order.model].compile, order.grammar)
                # cancelled while the grammar compiled: nobody would end it
                if order.request_id not in self._leases:
                    return
            request_id = await engine.submit(self._request(order, engine).replace(structure=structure))
            yield [[]]
            async with aclosing(engine.events(request_id)) as batches:  # type: ignore[type-var]
                async for batch in batches:
                    message, done = _messages(batch, submitted)
                    decoding = done is None
                    if done is not None and done.error is not None:
                        message.append(self._failed(order, done.error))
                    elif done is not None and done.result is not None:
                        result = done.result
                        message.append(self._decoded(order, result, submitted_at))
                    elif done is not None:
                        cancelled = True
                    if message:
                        yield message
        except EngineFull as error:
            decoding = False
            yield [Refused(str(error), status=503)]
        except UserError as error:
            decoding = False
            yield [Refused(str(error))]
        except EngineStopped as error:
            decoding = False
            raise ReplicaLost(str(error)) from error
        finally:
            was_open = self._leases.close(order.request_id)
            self._interpreters.owners.pop(order.request_id, None)
            if result is not None:  # written after the last message, so that no answer waits for it
                self._log(order, result)
            elif decoding or cancelled:
                request, attempt = order.http_request_id, order.request_id
                logs.log(logger, "cancelled", request, attempt=attempt, model=order.model)
            if decoding:
                self._num_cancelled += was_open
                # Leave also if the stream was closed before the engine had answered.
                self._later(engine.leave(order.request_id))

    async def absorb(self, model: str, request_id: str, path: Path, response_ids: list[int]) -> None:
        """Add a chunk that another replica has decoded to its response here."""
        with _ignoring_ended():
            await self._engines[model].absorb(request_id, path, response_ids)

    async def adopt(
        self,
        model: str,
        request_id: str,
        path: Path,
        tokens: tuple[tuple[Path, int], ...],
        lent: dict[Path, Limits],
    ) -> None:
        """Continue a chunk that another replica began: decode it here, after ``tokens``."""
        with _ignoring_ended():
            await self._engines[model].adopt(request_id, path, ThreadProgress(tokens, lent))

    async def cancel(self, model: str, request_id: str) -> None:
        """Stop a request that its client or its Interpreter has abandoned."""
        if self._leases.close(request_id):
            self._num_cancelled += 1
            await self._engines[model].cancel(request_id)

    async def renew(self, request_ids: list[str]) -> None:
        """Renew the leases of requests that an Interpreter still waits for.

        A coroutine, as all methods that touch leases or engines: Serve calls plain methods in other threads.
        """
        self._leases.renew(request_ids)

    async def tell(self, interpreter: str) -> Told:
        """What an Interpreter needs to choose among the Decoders, and to know its share of the budget."""
        return self._told(interpreter)

    def _told(self, interpreter: str) -> Told:
        engines = {name: engine.engine for name, engine in self._engines.items()}
        others = {
            name: [
                lanes
                for request_id, lanes in engine.lanes_by_request.items()
                if self._interpreters.owners.get(request_id, interpreter) != interpreter
            ]
            for name, engine in engines.items()
        }
        prefixes = {name: engine.prefixes.digests for name, engine in engines.items()}
        return Told(
            prefixes,
            sum(map(sum, others.values())),
            self._interpreters.seen(interpreter),
            {name: len(lanes) for name, lanes in others.items()},
        )

    def _reap(self, engine: "AsyncEngine", order: DecodeOrder) -> None:
        self._num_reaped += 1
        self._metrics.count("pasta_leases_expired")
        logs.log(logger, "lease expired", order.http_request_id, logging.WARNING, attempt=order.request_id)
        self._num_cancelled += 1
        self._later(engine.cancel(order.request_id))

    def _request(self, order: DecodeOrder, engine: "AsyncEngine") -> Request:
        policy, costs = POLICIES[order.placement], self._costs[order.model]
        visible = len(order.prompt_ids) + (len(order.snapshot.token_ids) if order.snapshot else 0)

        def stays(_: int, estimate: int) -> bool:
            home = Home(engine.engine.num_lanes, costs)
            return not policy.leaves(home, estimate, visible)

        return Request(
            prompt_ids=order.prompt_ids,
            snapshot=order.snapshot,
            sampling=order.sampling,
            limits=order.limits,
            parallel=order.parallel,
            place_locally=None if order.placement == "local" else stays,
            lent=order.snapshot is not None,
            progress=ThreadProgress(order.tokens, order.lent),
            logprobs=order.logprobs,
            cache_salt=order.prefix_salt,
            prompt_logprobs=order.prompt_logprobs,
            drafts=order.drafts,
            conversation=order.conversation,
            request_id=order.request_id,
        )

    def _decoded(self, order: DecodeOrder, result: Result, submitted_at: float) -> Decoded:
        self._num_finished += 1
        times = result.queue_s, result.ttft_s, result.total_s
        step_s = self._costs[order.model].step_s
        # Of a chunk of another Decoder's response nobody reads it.
        told = self._told(order.interpreter) if order.snapshot is None else None
        prompt = tuple((each.chosen, each.top) for each in result.prompt_logprobs)
        cached = result.cached_tokens
        return Decoded(result.finish_reason, result.steps, *times, step_s, cached, prompt, submitted_at, told)

    def _failed(self, order: DecodeOrder, error: Exception) -> Refused:
        """Refuse a request that failed by itself, without ``ReplicaLost``: it would fail on another replica too."""
        if isinstance(error, UserError):
            name = order.grammar.param if order.grammar is not None else None
            said = f"{name}: {error}" if name else str(error)
            return Refused(said, param=name)
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

    async def stats(self) -> dict[str, Any]:
        """Count this replica's requests (decoding, waiting, finished, cancelled, reaped) and its lanes in use, and say
        in which number format each model computes, and why, the fingerprint of its weights, and how many processes
        share it.

        An answer decoded on several replicas is a request on each.
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
            "version": self._version,
            "tensor_parallel": self._tensor_parallel,
            "weights": self._weights,
            "formats": {
                name: dataclasses.asdict(engine.engine.loaded.format)
                for name, engine in self._engines.items()
            },
        }

    async def version(self) -> Version:
        """The version of its models, the formats that they compute in, and their weights' fingerprints."""
        formats = {name: engine.engine.loaded.format.name for name, engine in self._engines.items()}
        return Version(self._version, formats, self._weights)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Report the load to serve/decoder/autoscaling.py; Serve calls this."""
        stats = await self.stats()
        return {LANES: float(stats["lanes"] + stats["waiting"])}

    def check_health(self) -> None:
        """Raise if an engine has stopped, or one of the processes that share it: Serve then restarts the replica."""
        for engine in self._engines.values():
            if engine.failure is not None:
                raise RuntimeError(str(engine.failure))
        if self._followers is not None:
            self._followers.check()


@contextmanager
def _ignoring_ended() -> Iterator[None]:
    """Ignore messages for requests that are no longer here: their streams have reported how they ended."""
    try:
        yield
    except UnknownRequest:
        pass
    except EngineStopped as error:
        raise ReplicaLost(str(error)) from error


def _messages(batch: list[Event], submitted: float) -> tuple[list[Decoding], DoneEvent | None]:
    tokens: list[TokenItem] = []
    lent: list[Lent] = []
    for event in batch:
        if isinstance(event, TokenEvent):
            tokens.append(_item(event, submitted))
        elif isinstance(event, ForkEvent) and event.lent is not None:
            lent.append(Lent(event.path, event.lent))
    last = batch[-1]
    return [*([tokens] if tokens else []), *lent], last if isinstance(last, DoneEvent) else None


def _followers(config: ServeConfig) -> Followers | None:
    decoder = config.decoder
    if decoder.tensor_parallel == 1:
        return None
    return Followers(
        decoder.tensor_parallel,
        threads=decoder.threads,
        num_cpus=decoder.num_cpus,
        num_gpus=decoder.num_gpus,
        resources=decoder.resources,
    )


def _costs(engine: "Engine", config: ServeConfig) -> LaneCosts:
    from pasta.engine import measure_costs

    measured = measure_costs(engine)
    knee = config.decoder.lane_knee
    return measured if knee is None else dataclasses.replace(measured, knee=knee)


def _item(event: TokenEvent, submitted: float) -> TokenItem:
    item = (event.path, event.token, event.time - submitted)
    return item if event.logprobs is None else (*item, (event.logprobs.chosen, event.logprobs.top))


def _warm_up(engine: "Engine") -> None:
    """Decode two short answers with a few threads: the first steps compile and allocate, and no user waits for that."""
    codec = engine.codec
    prompt = [*codec.begin_ids, *codec.encode_text("Hello")]
    for _ in range(2):
        limits = Limits(max_tokens=60, max_threads=3, max_chunk_tokens=16)
        sampling = SamplingParams(promise_bias=30.0)
        engine.generate(Request(prompt, sampling=sampling, limits=limits, parallel=codec.parallel))
