"""The asyncio façade: a thread runs the engine's steps, coroutines submit, stream and cancel."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic
from typing import Any

from pasta.engine.engine import Engine
from pasta.engine.request import DoneEvent, EngineStopped, Event, ForkEvent, Path, Request, ThreadProgress

#: Seconds without a request before next turns are prefilled. Programs ask again at once, and what else runs on the
#: cores has work until they do; a person takes longer.
PAUSE_S = 0.1


class AsyncEngine:
    """Runs an ``Engine`` in a thread of its own. All methods are for one event loop.

    Events are delivered every ``stream_interval_s`` seconds of ``clock``, after every step if a step takes longer: a
    batch costs the receiver as much as a single token would. A response's first token, its end, and a chunk to be
    decoded elsewhere are delivered at once, without what other responses have.
    """

    def __init__(
        self,
        engine: Engine,
        stream_interval_s: float = 0.0,
        *,
        pause_s: float = PAUSE_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.engine = engine
        self._pause_s = pause_s
        self._stream_interval_s, self._clock = stream_interval_s, clock
        self._queues: dict[str, asyncio.Queue[list[Event] | BaseException]] = {}
        self._commands: list[Callable[[], None]] = []
        #: The calls that the engine's thread has not answered yet.
        self._calls: set[asyncio.Future[Any]] = set()
        #: Why the engine's thread has ended by itself, if it has: no request decodes here any more.
        self.failure: EngineStopped | None = None
        self._wake = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Deliver events as the next forward begins, which releases the GIL: the receiver needs it. Delivered
        # earlier, they would make the engine's thread wait for it.
        self._kept: dict[str, list[Event]] = {}
        #: The responses whose events cannot wait, and when those of all were delivered last.
        self._urgent: set[str] = set()
        self._delivered_at = clock()
        self._begun: set[str] = set()
        engine.runner.before_forward = self._hand_over_due

    async def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="pasta-engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread; open streams raise ``EngineStopped``, and their requests leave the engine."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._deliver(self._kept)
        self._kept = {}  # the engine's next forward, if another one uses it, has nothing of these to deliver
        self._urgent.clear()
        self._fail_all(EngineStopped("the engine was stopped"))
        if self.failure is None:  # else nobody knows what its cache holds
            for request_id in self.engine.lanes_by_request:
                self.engine.cancel(request_id)

    async def submit(self, request: Request) -> str:
        """Queue a request; returns its id. Raises ``UserError`` if it can never fit.

        A request whose submission is cancelled is not decoded.
        """
        accepted: list[str] = []
        try:
            await self._call(lambda: accepted.append(self._submit(request)))
        except asyncio.CancelledError:
            # Nobody has its id. Commands are taken in order: when this one is, it has one, or was refused.
            self._post(lambda: self._forget(accepted))
            raise
        return accepted[0]

    async def events(self, request_id: str) -> AsyncIterator[list[Event]]:
        """Iterate over the events of a submitted request, in batches as they come, ``DoneEvent`` last.

        Leaving the iteration early cancels the request.
        """
        queue = self._queues[request_id]
        finished = False
        try:
            while not finished:
                batch = await queue.get()
                if isinstance(batch, BaseException):
                    finished = True
                    raise batch
                while not queue.empty():
                    more = queue.get_nowait()
                    if isinstance(more, BaseException):
                        queue.put_nowait(more)  # after what came before it: an answer may have ended
                        break
                    batch = batch + more
                finished = isinstance(batch[-1], DoneEvent)
                yield batch
        finally:
            self._queues.pop(request_id, None)
            if not finished:
                self._post(lambda: self._cancel(request_id))

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        """Submit and iterate over single events."""
        request_id = await self.submit(request)
        batches = self.events(request_id)
        try:
            async for batch in batches:
                for event in batch:
                    yield event
        finally:
            await batches.aclose()  # type: ignore[attr-defined]

    async def cancel(self, request_id: str) -> bool:
        """Stop a request between two steps; its stream ends with a ``DoneEvent`` of reason cancelled."""
        return bool(await self._call(lambda: self._cancel(request_id)))

    async def leave(self, request_id: str) -> None:
        """Cancel a request whose events nobody will read, also while it is being submitted, and forget it."""
        await self.cancel(request_id)
        self._queues.pop(request_id, None)

    async def absorb(self, request_id: str, path: Path, response_ids: Sequence[int]) -> None:
        """Give a request a chunk that was decoded elsewhere. Raises ``UserError`` if the request is gone."""
        await self._call(lambda: self.engine.absorb(request_id, path, response_ids))

    async def adopt(self, request_id: str, path: Path, progress: ThreadProgress) -> None:
        """Have a request decode a chunk itself that was to be decoded elsewhere. Raises as ``absorb`` does."""
        await self._call(lambda: self.engine.adopt(request_id, path, progress))

    # -- on the engine's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                self._await_work()
                if self._stopping:
                    return
                commands, self._commands = self._commands, []
            try:
                for command in commands:
                    command()
                if self.engine.has_work:
                    self._keep(self.engine.step())
                if not self.engine.has_requests:
                    self._hand_over()
            except Exception as error:
                self._hand_over()
                self.failure = EngineStopped(f"the engine's step failed: {error}")
                self.failure.__cause__ = error
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._fail_all, self.failure)
                return

    def _await_work(self) -> None:
        while not (self._commands or self._stopping or self.engine.has_requests):
            if not self.engine.has_work:
                self._wake.wait()
            elif not self._wake.wait(self._pause_s):
                return

    def _submit(self, request: Request) -> str:
        request_id = self.engine.submit(request)
        self._queues[request_id] = asyncio.Queue()
        return request_id

    def _cancel(self, request_id: str) -> bool:
        found = self.engine.cancel(request_id)
        if found:
            self._keep([DoneEvent(request_id, 0.0, self.engine.num_steps, 0, "cancelled", None)])
            self._hand_over()
        return found

    def _forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._cancel(request_id)
            self._queues.pop(request_id, None)

    def _keep(self, events: list[Event]) -> None:
        for event in events:
            request_id = event.request_id
            self._kept.setdefault(request_id, []).append(event)
            if isinstance(event, DoneEvent):
                self._begun.discard(request_id)
                self._urgent.add(request_id)
            elif request_id not in self._begun:
                self._begun.add(request_id)
                self._urgent.add(request_id)
            elif isinstance(event, ForkEvent) and event.lent is not None:
                self._urgent.add(request_id)

    def _hand_over_due(self) -> None:
        if self._kept and self._clock() - self._delivered_at >= self._stream_interval_s:
            self._hand_over()
        elif self._urgent:
            self._send({request_id: self._kept.pop(request_id) for request_id in self._urgent})
            self._urgent.clear()

    def _hand_over(self) -> None:
        self._delivered_at = self._clock()
        self._send(self._kept)
        self._kept = {}
        self._urgent.clear()

    def _send(self, by_request: dict[str, list[Event]]) -> None:
        if by_request:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._deliver, by_request)

    # -- from the event loop to the engine's thread ------------------------------------------------------

    def _deliver(self, by_request: dict[str, list[Event]]) -> None:
        for request_id, events in by_request.items():
            if (queue := self._queues.get(request_id)) is not None:
                queue.put_nowait(events)

    def _fail_all(self, failure: BaseException) -> None:
        self._stopping = True
        for queue in self._queues.values():
            queue.put_nowait(failure)
        for future in self._calls:
            if not future.done():
                future.set_exception(failure)

    def _post(self, command: Callable[[], Any]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    async def _call(self, function: Callable[[], Any]) -> Any:
        """Run a function on the engine's thread, between two steps."""
        if self._stopping or self._loop is None:
            raise EngineStopped("the engine is not running")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)

        def settle(method: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                method(value)

        def command() -> None:
            assert self._loop is not None
            try:
                value = function()
            except Exception as error:
                self._loop.call_soon_threadsafe(settle, future.set_exception, error)
            else:
                self._loop.call_soon_threadsafe(settle, future.set_result, value)

        self._post(command)
        return await future
