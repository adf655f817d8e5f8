"""How far a stage is, and how long it will take."""

import time
from collections.abc import Callable, Mapping

from pasta.tracking import Tracker

#: Least seconds between two lines.
PAUSE_S = 2.0


def _print(line: str) -> None:
    print(line, flush=True)


class Progress:
    """Prints a line as work gets done: ``NAME: DONE/TOTAL UNIT  DETAIL  eta MINUTES min``.

    ``found`` of the ``total`` were done by an earlier run: they count as done, but not towards the rate. With a tracker
    every step is recorded as well, as ``JOB/UNIT``. Lines go to ``say``.
    """

    def __init__(
        self,
        name: str,
        total: int,
        unit: str,
        found: int = 0,
        *,
        tracker: Tracker | None = None,
        job: str = "",
        again: str = "",
        say: Callable[[str], None] = _print,
    ) -> None:
        self.done = self._found = found
        self._name, self._total, self._unit, self._say = name, total, unit, say
        self._tracker, self._job = tracker or Tracker(), job
        self._begun = time.monotonic()
        self._said = float("-inf")
        earlier = f", {found} found from an earlier run{again}" if found else ""
        say(f"{name}: {total} {unit}{earlier}")

    @property
    def seconds(self) -> float:
        """The time since this began; never zero."""
        return max(time.monotonic() - self._begun, 1e-9)

    def add(self, count: int = 1, detail: object = "", figures: Mapping[str, float] | None = None) -> None:
        """``count`` more are done: record ``figures``, and print ``detail`` unless a line has just been printed.

        The last step is always printed.
        """
        self.done += count
        self._tracker.log({f"{self._job}/{self._unit}": float(self.done), **(figures or {})}, step=self.done)
        now = time.monotonic()
        if now - self._said < PAUSE_S and self.done < self._total:
            return
        self._said = now
        minutes = self.seconds / max(self.done - self._found, 1) * (self._total - self.done) / 60
        shown = f"  {detail}" if str(detail) else ""
        self._say(f"{self._name}: {self.done}/{self._total} {self._unit}{shown}  eta {minutes:.1f} min")
