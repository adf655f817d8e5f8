"""Turns the Interpreter's updates into a response, whole or as a stream, within a deadline."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, aclosing, suppress
from typing import Any, TypeVar

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from serve.errors import ApiError, failed, overloaded, timed_out, unavailable
from serve.gateway.guard import OpenRequests
from serve.gateway.responses import SSE_DONE, Choice, Writer, sse
from serve.wire import Accepted, Delta, Finished, Refused, Update, UpdateBatches

logger = logging.getLogger("ray.serve")
T = TypeVar("T")

#: Seconds until another Interpreter is asked, and for how long that is tried while superseded ones refuse.
_AGAIN_S, _WITHIN_S = 0.05, 10.0
_BLOCK_CHARS = 64 * 1024
#: Tasks that read answered streams to their end.
_ending: set[asyncio.Task[None]] = set()


async def checked(batches: UpdateBatches, timeout_s: float, requests: OpenRequests) -> UpdateBatches:
    """Pass the updates on; raise ``ApiError`` for a refusal, a lost replica, a passed deadline, and a Gateway that has
    drained for as long as it may."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        async with aclosing(batches):
            while True:
                try:
                    # The wait that draining finds under way keeps its deadline; the next one, soon, has the new one.
                    async with asyncio.timeout_at(min(deadline, requests.closes_at)) as limit:
                        batch = await anext(batches)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    if not limit.expired():
                        raise
                    if requests.closes_at < deadline:
                        raise unavailable(
                            "The service stopped before the answer was whole; send the request again.", 1
                        ) from None
                    raise timed_out(
                        f"The answer took longer than the {timeout_s:g} seconds it was given."
                    ) from None
                if isinstance(batch[-1], Refused):
                    raise refusal(batch[-1])
                yield batch
    except (RayError, RayServeException) as error:
        logger.exception("replica lost")
        raise unavailable(
            "A part of the service was lost while it answered; send the request again.", retry_after_s=1
        ) from error


def refusal(refused: Refused) -> ApiError:
    """The error that answers a refused request."""
    if refused.status == 429:
        return overloaded(refused.message, refused.retry_after_s or 1)
    if refused.superseded:
        return unavailable(refused.message, retry_after_s=1)
    if refused.status == 500:
        return failed()
    return ApiError(refused.message, status=refused.status, param=refused.param, code=refused.code)


async def retried(
    ask: Callable[[], UpdateBatches],
    known: Callable[[], frozenset[str]] = frozenset,
    within_s: float = _WITHIN_S,
) -> UpdateBatches:
    """Pass the updates of ``ask`` on; ask again while a superseded Interpreter refuses, for ``within_s`` at most, and
    until each of the ``known`` ones has said that it has no such model.

    In a rolling update that lasts until this Gateway's router learns of the new Interpreter.
    """
    retries = _Retries(known, within_s)
    while True:
        async with aclosing(ask()) as batches:
            async for batch in batches:
                if retries.after(batch[-1]):
                    break
                yield batch
            else:
                return
        await asyncio.sleep(_AGAIN_S)


async def told(
    ask: Callable[[], Awaitable[T | Refused]],
    known: Callable[[], frozenset[str]] = frozenset,
    within_s: float = _WITHIN_S,
) -> T:
    """What ``ask`` returns, asked again as :func:`retried` does. Raises ``ApiError`` for a refusal."""
    retries = _Retries(known, within_s)
    while isinstance(found := await ask(), Refused):
        if not retries.after(found):
            raise refusal(found)
        await asyncio.sleep(_AGAIN_S)
    return found


class _Retries:
    """Tells whether to ask again. The time for that begins with the first refusal: until then the Interpreter may have
    waited long for Decoders that were being replaced.

    A Gateway starts when an Interpreter has all of its models. So where none of those that it knows has one, this
    Gateway is the one that an update replaces, and the client has to send its request to the next.
    """

    def __init__(self, known: Callable[[], frozenset[str]], within_s: float) -> None:
        self._known, self._within_s = known, within_s
        self._without_model: set[str] = set()
        self._until: float | None = None

    def after(self, answer: object) -> bool:
        """Whether to ask again after this answer."""
        if not (isinstance(answer, Refused) and answer.superseded):
            return False
        if answer.no_model:
            self._without_model.add(answer.by)
            if self._without_model >= self._known():
                return False
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._within_s
        return now < self._until


async def collect(writer: Writer, batches: UpdateBatches) -> Iterator[str]:
    """Read all updates; returns the pieces of the whole response."""
    choices = [Choice() for _ in range(writer.num_choices)]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(batches.aclose)
        while any(choice.finished is None for choice in choices):
            for update in await _next(batches):
                writer.usage.count(update)
                if isinstance(update, Delta):
                    choices[update.index].text.append(update.text)
                    choices[update.index].logprobs += update.logprobs
                elif isinstance(update, Finished):
                    choices[update.index].finished = update
        stack.pop_all()
        _end(batches)
    return writer.whole(choices)


async def written(pieces: Iterator[str], place: ExitStack) -> AsyncGenerator[str, None]:
    """Yield a whole response in blocks of about 64 KiB; other requests may run before each block. Holds ``place`` to
    the end."""
    with place:
        block, size = list[str](), 0
        for piece in pieces:
            block.append(piece)
            size += len(piece)
            if size >= _BLOCK_CHARS:
                await asyncio.sleep(0)
                yield "".join(block)
                block, size = [], 0
        yield "".join(block)


async def resumed(begin: Iterable[str], rest: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    """Yield the items already taken from a generator, then its other items."""
    async with aclosing(rest):
        for each in begin:
            yield each
        async for each in rest:
            yield each


async def stream(writer: Writer, first: list[Update], batches: UpdateBatches) -> AsyncGenerator[str, None]:
    """Write the response as server-sent events. An error after the first one is sent as the last event.

    Updates that arrive together are written together.
    """
    unfinished = writer.num_choices
    async with AsyncExitStack() as stack:
        stack.push_async_callback(batches.aclose)
        chunks: list[dict[str, Any]] = []
        batch = first
        try:
            while True:
                for update in batch:
                    writer.usage.count(update)
                    if isinstance(update, Accepted):
                        chunks += writer.first_chunks()
                    elif isinstance(update, Delta):
                        chunks.append(writer.delta_chunk(update))
                    elif isinstance(update, Finished):
                        unfinished -= 1
                        chunks.append(writer.finish_chunk(update))
                if not unfinished:
                    break
                if chunks:
                    yield "".join(map(sse, chunks))
                chunks, batch = [], await _next(batches)
            stack.pop_all()
            _end(batches)
            chunks += writer.last_chunks()
            yield "".join(map(sse, chunks)) + SSE_DONE
        except ApiError as error:
            yield sse(error.body())


async def _next(batches: UpdateBatches) -> list[Update]:
    try:
        return await anext(batches)
    except StopAsyncIteration:
        raise unavailable("The answer ended early; send the request again.") from None


def _end(batches: UpdateBatches) -> None:
    """Read the streams behind an answered request to their end in the background: no client waits for that."""

    async def follow() -> None:
        with suppress(ApiError):  # the answer is complete, whatever fails now
            async for _ in batches:
                pass

    task = asyncio.get_running_loop().create_task(follow())
    _ending.add(task)
    task.add_done_callback(_ending.discard)
