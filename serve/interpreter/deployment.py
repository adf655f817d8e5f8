"""The Interpreter deployment: owns each request from its prompts to its finished answers."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, contextmanager
from time import time
from typing import Any, TypeVar

from ray.serve.handle import DeploymentHandle

from pasta.heap import trim_heap
from serve import priority
from serve.calls.ray_serve import DeploymentClient, this_replica
from serve.calls.replicas import Superseded
from serve.config import ServeConfig
from serve.imports import uncollected, without_torch
from serve.interpreter.admission import Admission, Overloaded, TooLarge
from serve.interpreter.dispatch import Dispatcher
from serve.interpreter.echo import Echo
from serve.interpreter.encoding import RequestEncoder, RequestRefused
from serve.interpreter.response import DistributedResponse
from serve.interpreter.session import Session
from serve.observe import logs
from serve.observe.metrics import Reporter
from serve.wire import (
    Accepted,
    Decoded,
    DecodeOrder,
    Delta,
    Finished,
    Order,
    PromptInput,
    PromptTokens,
    Refused,
    Update,
    UpdateBatches,
)

T = TypeVar("T")
logger = logging.getLogger("ray.serve")

#: Rolling update: the Gateway retries on the new version.
_SUPERSEDED = Refused("The service is being updated; send the request again.", status=503, superseded=True)


@contextmanager
def _refusals(*, no_room: bool) -> Iterator[None]:
    """Turn admission's exceptions into :class:`RequestRefused`."""
    try:
        yield
    except Overloaded as error:
        raise RequestRefused(
            "The service is at capacity; try again later.",
            status=429,
            code="overloaded",
            retry_after_s=error.retry_after_s,
            full=not error.waited,
            no_room=no_room and not error.waited,  # the next one may have a place in the queue
        ) from None
    except TooLarge as error:
        raise RequestRefused(
            f"The request asks for {error.tokens} tokens (prompts and longest answers, of all choices), but this "
            f"service holds {error.most} at most; lower n, or set a lower max_tokens.",
            param="max_tokens",
            code="request_too_large",
        ) from None


class InterpreterDeployment:
    """Encodes prompts, has Decoders decode them, and assembles the answers in reading order."""

    @logs.log_failed_start(logger)
    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: ServeConfig, decoders: DeploymentHandle
    ) -> None:
        priority.set_batch()
        with uncollected():
            without_torch()
        self._config = config
        self._name = this_replica()
        self._dispatcher = Dispatcher(DeploymentClient(decoders), config, self._name)
        full = config.budget_tokens(config.decoder.max_replicas)
        self._admissions = {name: Admission(config.admission, self._budget, full) for name in config.models}
        self._encoding, self._compiling = ThreadPoolExecutor(1, "encode"), ThreadPoolExecutor(1, "compile")
        self._encoding_long = ThreadPoolExecutor(1, "encode-long")
        self._encoders = {name: RequestEncoder(model, config) for name, model in config.models.items()}
        trim_heap()  # what reading tokenizers took
        reporter = Reporter(self._dispatcher.metrics.record)
        self._dispatcher.spawn(reporter.admission(self._admissions))
        self._dispatcher.spawn(self._admit_as_decoders_come())
        # In a rolling update the Interpreters of the old version serve with their own Decoders until then.
        await self._dispatcher.ready()

    def _budget(self) -> int:
        """This Interpreter's share of each model's budget, given the Decoders that are running; of one Decoder's while
        none is."""
        budget = self._config.budget_tokens(max(1, len(self._dispatcher.replicas.replicas)))
        return budget // self._dispatcher.num_interpreters

    async def _admit_as_decoders_come(self) -> None:
        while True:
            await self._dispatcher.replicas.change()
            for admission in self._admissions.values():
                admission.admit()

    async def answer(self, order: Order) -> UpdateBatches:
        """Answer a request: yield ``Accepted``, then for each choice ``Delta`` as tokens come and ``Finished``; or only
        ``Refused``. Each list holds all that has arrived at once.
        """
        encoder = self._encoders.get(order.model)
        if encoder is None:
            yield [self._no_model()]
            return
        self._dispatcher.num_routed = order.num_interpreters
        marks = [*order.marks, ("admission", time())]
        try:
            # Overload is refused before anything is encoded. Encoding has a thread of its own, and so have grammars,
            # which take up to a second: they delay no other answer.
            async with AsyncExitStack() as stack:
                with _refusals(no_room=True):
                    hold = self._admissions[order.model].hold(encoder.min_tokens(order))
                    held = await stack.enter_async_context(hold)
                marks.append(("encoding", time()))
                loop = asyncio.get_running_loop()
                if (grammar := order.grammar) is not None:
                    await loop.run_in_executor(self._compiling, encoder.check_grammar, grammar, order.mode)
                thread = self._encoding_long if encoder.is_long(*order.prompts) else self._encoding
                decode_orders = await loop.run_in_executor(thread, encoder.decode_orders, order)
                with _refusals(no_room=False):
                    await held.resize(sum(len(o.prompt_ids) + o.limits.max_tokens for o in decode_orders))
                order = dataclasses.replace(order, marks=(*marks, ("to the Decoder", time())))
                choices = [self._choice(encoder, order, decode_order) for decode_order in decode_orders]
                prompt_tokens = sum(len(o.prompt_ids) for o in decode_orders[:: order.n])
                cached = CachedTokens(order.n)
                async with aclosing(merge_streams(choices)) as batches:
                    accepted = False
                    async for index, batch in batches:
                        if isinstance(batch[-1], Refused):
                            yield [batch[-1]]
                            return
                        updates: list[Update] = [
                            cached.counted(dataclasses.replace(update, index=index) if index else update)
                            for update in batch
                            if update and not isinstance(update, Refused)
                        ]
                        if accepted and updates:
                            yield updates
                        elif not accepted:
                            accepted = True
                            yield [Accepted(prompt_tokens), *updates]
                            # Written once a Decoder has begun, so that the answer does not wait for the log.
                            self._log(order, prompt_tokens, len(choices))
        except RequestRefused as error:
            yield [dataclasses.replace(error.refused, by=self._name)]
        except Superseded:
            yield [_SUPERSEDED]

    def _log(self, order: Order, prompt_tokens: int, num_choices: int) -> None:
        logs.log(
            logger,
            "admitted",
            order.http_request_id,
            completion=order.request_id,
            model=order.model,
            num_choices=num_choices,
            prompt_tokens=prompt_tokens,
        )

    async def _choice(
        self, encoder: RequestEncoder, order: Order, decode_order: DecodeOrder
    ) -> AsyncGenerator[list[Delta | Finished | Refused], None]:
        """Decode one choice: yield lists of ``Delta`` (the first, maybe empty, when a Decoder has accepted it) and
        ``Finished``; or only ``Refused``."""
        session = Session(
            encoder.codec,
            decode_order.prompt_ids,
            decode_order.limits,
            parallel=decode_order.parallel,
            sampling=decode_order.sampling,
            wants_events=order.wants_events,
        )
        response = DistributedResponse(self._dispatcher, decode_order, session)
        echo = None
        if order.echo:
            echo = Echo(encoder.codec, decode_order.prompt_ids, logprobs=order.logprobs is not None)
        async with aclosing(response.updates()) as batches:
            async for batch in batches:
                updates: list[Delta | Finished | Refused] = []
                decoded = None
                for result in batch:
                    if isinstance(result, Decoded):
                        decoded = result
                        finished = session.finish(
                            result,
                            wants_document=order.wants_document,
                            trace_of=decode_order.request_id if order.wants_trace else None,
                            placement_events=response.placement_events,
                            marks=order.marks,
                        )
                        finished.pasta.update(response.placement())
                        updates += [session.rest(), finished]
                    else:
                        updates.append(result)
                yield updates if echo is None else echo.passed(updates, decoded, session.end)

    async def tokenize(
        self,
        model: str,
        prompt: PromptInput,
        begin: bool,
        options: Mapping[str, int] | None = None,
        strings: bool | None = None,
    ) -> PromptTokens | Refused:
        """The tokens of a text or a conversation."""
        thread = self._encoding_long if RequestEncoder.is_long(prompt) else self._encoding
        return await self._encoded(
            model, lambda encoder: encoder.tokenize(prompt, begin, options, strings), thread
        )

    async def detokenize(self, model: str, tokens: list[int]) -> str | Refused:
        """The text of token ids."""
        return await self._encoded(model, lambda encoder: encoder.detokenize(tokens), self._encoding)

    async def _encoded(
        self, model: str, ask: Callable[[RequestEncoder], T], thread: ThreadPoolExecutor
    ) -> T | Refused:
        if (encoder := self._encoders.get(model)) is None:
            return self._no_model()
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, ask, encoder)
        except RequestRefused as error:
            return error.refused

    def _no_model(self) -> Refused:
        return dataclasses.replace(_SUPERSEDED, no_model=True, by=self._name)

    async def contexts(self, version: str) -> dict[str, int] | None:
        """The most tokens of a prompt and its answer together, by model; ``None`` if it serves another ``version``
        (``ServeConfig.version``)."""
        if version != self._config.version:
            return None
        return {name: encoder.context for name, encoder in self._encoders.items()}

    async def stats(self) -> list[dict[str, Any]]:
        """The statistics of each Decoder that answers."""
        return await self._dispatcher.stats()


class CachedTokens:
    """Counts the tokens of a prompt that were found in the cache: once, however many choices it has."""

    def __init__(self, num_choices: int) -> None:
        self._num_choices = num_choices
        self._found: dict[int, list[int]] = {}

    def counted(self, update: Delta | Finished) -> Delta | Finished:
        """Return the update of a choice. The last choice of a prompt to finish reports the fewest cached tokens of all
        of them."""
        if isinstance(update, Delta):
            return update
        found = self._found.setdefault(update.index // self._num_choices, [])
        found.append(update.cached_tokens)
        return dataclasses.replace(update, cached_tokens=min(found) if len(found) == self._num_choices else 0)


async def merge_streams(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield the items of all streams as they come, each with the number of its stream.

    If one stream fails, all are closed and its error is raised. Leaving the iteration early closes all.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    # Bounded, so that a slow reader slows the streams down, as it does when there is only one.
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(maxsize=4 * len(streams))

    async def follow(number: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    await queue.put((number, item))
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.create_task(follow(number, stream)) for number, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            entry = await queue.get()
            if isinstance(entry, BaseException):
                raise entry
            if entry is None:
                running -= 1
            else:
                yield entry
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
