"""What a Gateway says by itself when there is no room: what it was told for the like of a request just before.

Refusing has to be cheap when there is least to spare, and asking the Interpreter costs as much again as reading the
request does.
"""

import time
from collections.abc import Callable
from contextlib import aclosing
from typing import NamedTuple

from serve.wire import Batches, Order, Refused

#: Nothing is remembered for longer: whoever is refused is told to wait at least as long. Another Gateway's requests, or
#: one that its client has just left, may end without a word here.
_MEMORY_S = 1.0
_Shape = tuple[str, int | None, int]


class _Known(NamedTuple):
    refused: Refused
    until: float


class Refusals:
    """Those that hold for all requests of a shape until some request ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[_Shape, _Known] = {}
        self._ends = 0

    async def ask(self, order: Order, stream: Callable[[], Batches]) -> Batches:
        """What the Interpreter says to an order (``stream`` asks it), or what it would say."""
        # All that admission looks at before it has encoded the prompts.
        shape = order.model, order.max_tokens, order.num_choices
        now = self._clock()
        self._known = {key: known for key, known in self._known.items() if now < known.until}
        if shape in self._known:
            yield [self._known[shape].refused]
            return
        ends, had_room = self._ends, True
        try:
            async with aclosing(stream()) as batches:
                async for batch in batches:
                    last = batch[-1]
                    if isinstance(last, Refused) and last.no_room:
                        had_room = False
                        if self._ends == ends:  # else it may be from before that
                            self._known[shape] = _Known(last, self._clock() + _MEMORY_S)
                    yield batch
        finally:
            if had_room:
                self._ends += 1
                self._known.clear()
