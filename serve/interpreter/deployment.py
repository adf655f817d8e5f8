"""The Interpreter deployment: owns a request from its prompts to its results."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager
from typing import Any

from ray.serve.handle import DeploymentHandle

from serve.calls.roster import Superseded
from serve.calls.transport import Caller
from serve.config import ServeConfig
from serve.decoder import priority
from serve.interpreter.admission import Admission, Overloaded, TooLarge
from serve.interpreter.choices import merge
from serve.interpreter.dispatch import Dispatcher
from serve.interpreter.response import Run
from serve.interpreter.served import RequestRefused, Served
from serve.interpreter.session import Session
from serve.observe import logs
from serve.observe.metrics import Reporter
from serve.wire import Accepted, Batches, Decoded, DecodeOrder, Finished, Order, Progress, Refused, Update

logger = logging.getLogger("ray.serve")


#: While a service is updated: the Interpreter of the other version can do it.
_ELSEWHERE = Refused("The service is being updated; send the request again.", status=503, elsewhere=True)


@contextmanager
def _refusals(*, no_room: bool) -> Iterator[None]:
    """What admission says, as :class:`RequestRefused`."""
    try:
        yield
    except Overloaded as error:
        raise RequestRefused(
            "The service has as much to do as it takes on; try again later.",
            status=429,
            code="overloaded",
            retry_after_s=error.retry_after_s,
            no_room=no_room,
        ) from None
    except TooLarge as error:
        raise RequestRefused(
            f"The request asks for {error.tokens} tokens (prompts and longest answers, of all choices), but this "
            f"service holds {error.most} at most; lower n or max_tokens.",
            param="max_tokens",
            code="request_too_large",
        ) from None


class Interpreter:
    """Encodes prompts, has them decoded, and assembles the answers in reading order."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: ServeConfig, decoders: DeploymentHandle
    ) -> None:
        priority.give_way()
        self._config = config
        self._decoders = Caller(decoders)
        self._dispatcher = Dispatcher(self._decoders, config)
        self._admission = Admission(config.admission, config.budget_tokens)
        self._encoding = ThreadPoolExecutor(1, "encode")
        self._models = {name: Served(model, config) for name, model in config.models.items()}
        reporter = Reporter(self._dispatcher.metrics.record)
        self._dispatcher.spawn(reporter.admission(self._admission.held, self._admission.budget_tokens))
        # Until then an Interpreter of the version before, if there is one, goes on with its own Decoders.
        await self._dispatcher.ready()

    async def answer(self, order: Order) -> Batches:
        """``Accepted``, then ``Progress`` as tokens come and ``Finished``, of each choice; or only ``Refused``.

        Each list is what there is at once.
        """
        served = self._models.get(order.model)
        if served is None:
            yield [_ELSEWHERE]
            return
        try:
            # Overload is refused before anything is encoded, and encoding holds up nobody else's answer.
            with ExitStack() as stack:
                with _refusals(no_room=True):
                    held = stack.enter_context(self._admission.hold(served.least_tokens(order)))
                loop = asyncio.get_running_loop()
                decode_orders = await loop.run_in_executor(self._encoding, served.decode_orders, order)
                with _refusals(no_room=False):
                    held.resize(sum(len(o.prompt_ids) + o.limits.max_tokens for o in decode_orders))
                choices = [self._choice(served, order, decode_order) for decode_order in decode_orders]
                prompt_tokens = sum(len(o.prompt_ids) for o in decode_orders[:: order.n])
                async with aclosing(merge(choices)) as batches:
                    accepted = False
                    async for index, batch in batches:
                        if isinstance(batch[-1], Refused):
                            yield [batch[-1]]
                            return
                        updates: list[Update] = [
                            dataclasses.replace(update, index=index) if index else update
                            for update in batch
                            if update and not isinstance(update, Refused)
                        ]
                        if accepted and updates:
                            yield updates
                        elif not accepted:
                            accepted = True
                            yield [Accepted(prompt_tokens), *updates]
                            # Only now, when a Decoder has begun: the answer does not wait for it.
                            self._log(order, prompt_tokens, len(choices))
        except RequestRefused as error:
            yield [error.refused]
        except Superseded:
            yield [_ELSEWHERE]

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
        self, served: Served, order: Order, decode_order: DecodeOrder
    ) -> AsyncGenerator[list[Progress | Finished | Refused], None]:
        """One choice: lists of ``Progress``, which may be empty, the first when a Decoder has taken it, and
        ``Finished``; or only ``Refused``."""
        session = Session(
            served.codec,
            decode_order.prompt_ids,
            decode_order.limits,
            parallel=decode_order.parallel,
            stop=order.stop,
            wants_events=order.wants_events,
        )
        run = Run(self._dispatcher, decode_order, session)
        async with aclosing(run.updates()) as batches:
            async for batch in batches:
                updates: list[Progress | Finished | Refused] = []
                for result in batch:
                    if isinstance(result, Decoded):
                        finished = session.finish(
                            result,
                            wants_document=order.wants_document,
                            trace_of=decode_order.request_id if order.wants_trace else None,
                            marks=run.marks,
                        )
                        finished.pasta.update(run.figures())
                        updates += [session.rest(), finished]
                    else:
                        updates.append(result)
                yield updates

    async def version(self) -> str:
        """What it serves (``ServeConfig.version``)."""
        return self._config.version

    async def stats(self) -> list[dict[str, Any]]:
        """What each Decoder is doing. Raises if one does not answer."""
        return await self._decoders.broadcast("stats", timeout_s=5.0)
