"""Records metrics and one log line for each request, from the updates that pass through the Gateway to its client."""

import logging
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import aclosing
from functools import cache
from time import perf_counter
from typing import Any

from serve.observe import logs
from serve.observe.metrics import HTTP, Answered, Metrics, Observation, of_answer, of_response
from serve.wire import Accepted, DecodingMode, Delta, Finished, Order, Update, UpdateBatches

Recorder = Callable[[Iterable[Observation]], None]
logger = logging.getLogger("ray.serve")


@cache
def gateway_metrics() -> Metrics:
    """The metrics of this Gateway process."""
    return Metrics(HTTP)


def record(observations: Iterable[Observation]) -> None:
    """Record observations in this Gateway's metrics."""
    gateway_metrics().record(observations)


class Watch:
    """Observes one request: ``saw`` each update, ``broke`` on an error, ``end`` at its end."""

    def __init__(
        self,
        request: str,
        order: Order,
        mode: DecodingMode,
        *,
        key: str | None = None,
        stream: bool = False,
        record: Recorder = record,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._request, self._order, self._mode = request, order, mode
        self._key, self._stream, self._record, self._clock = key, stream, record, clock
        self._begun = clock()
        self._first: dict[int, float] = {}
        self._finished: dict[int, Finished] = {}
        self._answers: list[Answered] = []
        self._accepted: Accepted | None = None
        self._error: Exception | None = None

    def unread(self, within_s: float) -> None:
        """Note that the client has read nothing for so many seconds, and that its response is given up."""
        self._record([Observation("pasta_slow_readers", 1, {})])
        logs.log(
            logger, "slow reader", self._request, logging.WARNING, key=self._key, write_timeout_s=within_s
        )

    def saw(self, update: Update) -> None:
        """Note an update that is sent to the client."""
        if isinstance(update, Accepted):
            self._accepted = update
        elif isinstance(update, Delta) and update.text and update.index not in self._first:
            self._first[update.index] = self._clock() - self._begun
        elif isinstance(update, Finished):
            self._answered(update.index, update.finish_reason, update)
            self._finished[update.index] = update

    def broke(self, error: Exception) -> None:
        """Note the error that ends the request."""
        self._error = error

    def end(self) -> None:
        """Record the metrics and write the log line. Answers that have not finished count as failed or abandoned.

        Nothing is recorded or written earlier, so that no answer waits for it.
        """
        missing = self._order.num_choices - len(self._finished)
        if self._accepted and missing:
            reason = "error" if self._error else "abandoned"
            for _ in range(missing):
                self._answered(-1, reason, None)
        self._record([observation for answered in self._answers for observation in of_answer(answered)])
        self._log()

    def _answered(self, index: int, reason: str, finished: Finished | None) -> None:
        self._answers.append(
            Answered(
                self._order.model,
                self._mode,
                reason,
                self._clock() - self._begun,
                self._first.get(index),
                finished.prompt_tokens if finished and self._is_first(index) else 0,
                finished.pasta if finished else {},
            )
        )

    def _is_first(self, index: int) -> bool:
        """Whether no other answer to the same prompt has finished before."""
        n = self._order.n
        return all(other // n != index // n for other in self._finished)

    def _log(self) -> None:
        done, error = [*self._finished.values()], self._error
        status = None if error is None else getattr(error, "status", 500)
        first = min(self._first.values(), default=None)
        logs.log(
            logger,
            self._event(),
            self._request,
            logging.ERROR if status is not None and status >= 500 else logging.INFO,
            completion=self._order.request_id,
            key=self._key,
            model=self._order.model,
            mode=self._mode,
            stream=self._stream,
            num_choices=self._order.num_choices,
            status=status,
            code=getattr(error, "code", None),
            finish_reason=",".join(dict.fromkeys(each.finish_reason for each in done)) or None,
            prompt_tokens=self._accepted.prompt_tokens if self._accepted else None,
            tokens=self._total("tokens") if done else None,
            threads=self._total("threads") if done else None,
            spills=self._total("spills") if done else None,
            redispatches=self._total("redispatches") if done else None,
            ttft_ms=None if first is None else round(first * 1000, 3),
            total_ms=round((self._clock() - self._begun) * 1000, 3),
        )

    def _event(self) -> str:
        if len(self._finished) == self._order.num_choices:
            return "answered"
        if self._error is None:
            return "abandoned"
        return "broke off" if self._accepted else "refused"

    def _total(self, name: str) -> int:
        return sum(int(finished.pasta.get(name, 0)) for finished in self._finished.values())


async def watched(batches: UpdateBatches, watch: Watch) -> UpdateBatches:
    """Pass the updates on unchanged, and end ``watch`` when they end, fail or are left."""
    try:
        async with aclosing(batches):
            async for batch in batches:
                for update in batch:
                    watch.saw(update)
                yield batch
    except Exception as error:  # GeneratorExit, when the client leaves, is no Exception
        watch.broke(error)
        raise
    finally:
        watch.end()


class CountResponses:
    """ASGI middleware: counts every response by its route's template and its status.

    Not Starlette's BaseHTTPMiddleware, which hides a client's disconnect from the endpoint.
    """

    def __init__(self, app: Any, record: Recorder = record) -> None:
        self._app, self._record = app, record

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def counted(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._count(scope, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if not begun:
                self._count(scope, 500)  # the server's error middleware answers 500
            raise

    def _count(self, scope: MutableMapping[str, Any], status: int) -> None:
        endpoint = getattr(scope.get("route"), "path", "unmatched")
        self._record([of_response(endpoint, status)])
