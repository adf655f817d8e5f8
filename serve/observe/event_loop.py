"""Measures how long one callback, or many in a row, hold a process's event loop: nobody else is served meanwhile."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import NoReturn

#: How often a timer is to fire, in seconds: a hundred wake-ups a second take about 0.3% of a core.
_TICK_S = 0.01
#: How long the longest hold is remembered.
WINDOW_S = 10


@dataclass(frozen=True, slots=True)
class Held:
    """How long a loop was held, in seconds.

    ``late_s`` is how late a timer fired. ``busy_s`` is what the loop's own thread computed between two timers: at least
    each hold, at most a tick more. On a busy machine the rest of ``late_s`` is waiting for a processor.
    """

    late_s: float
    busy_s: float


class LoopWatch:
    """Remembers the longest holds of the last ``WINDOW_S`` seconds. Run ``watch`` on the loop to be measured."""

    def __init__(self) -> None:
        #: The longest of each second.
        self._seconds: deque[tuple[int, Held]] = deque(maxlen=WINDOW_S)

    def longest(self) -> Held:
        """The longest hold of the last ``WINDOW_S`` seconds."""
        oldest = int(time.perf_counter()) - WINDOW_S
        found = [held for second, held in self._seconds if second > oldest]
        return Held(
            max((held.late_s for held in found), default=0.0),
            max((held.busy_s for held in found), default=0.0),
        )

    async def watch(self) -> NoReturn:
        """Measure until cancelled."""
        before, busy = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(_TICK_S)
            now, computed = time.perf_counter(), time.thread_time()
            self._note(int(now), Held(max(0.0, now - before - _TICK_S), computed - busy))
            before, busy = now, computed

    def _note(self, second: int, held: Held) -> None:
        if self._seconds and self._seconds[-1][0] == second:
            last = self._seconds.pop()[1]
            held = Held(max(held.late_s, last.late_s), max(held.busy_s, last.busy_s))
        self._seconds.append((second, held))
