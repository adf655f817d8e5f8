"""What an evaluation says while it goes: prompts done and left, speedups so far, verdicts."""

import time
from collections.abc import Mapping, Sequence

from pasta.evaluation.results.outcomes import realised_speedup, theoretical_speedup
from pasta.judges.tally import VerdictTally
from pasta.stages.records import Record
from pasta.statistics import geometric_mean
from pasta.tracking import Tracker

#: Least seconds between two lines.
_PAUSE_S = 2.0


class DecodeProgress:
    """Prints and tracks prompts decoded. Speedups are means over all prompts that both methods ended by themselves."""

    def __init__(
        self, name: str, total: int, baseline: str, found: Sequence[Record], repeats: int, tracker: Tracker
    ) -> None:
        self._name, self._total, self._baseline, self._tracker = name, total, baseline, tracker
        self._is_timed = repeats > 0
        self._clock = _Clock(total, len(found))
        self._speedups: dict[str, list[float]] = {}
        for record in found:
            self._count(record)
        earlier = f", {len(found)} found from an earlier run" if found else ""
        print(f"{name}: {total} prompts to decode{earlier}", flush=True)

    def add(self, record: Record) -> None:
        """A prompt is on disk."""
        self._count(record)
        self._clock.done += 1
        means = {method: geometric_mean(values) for method, values in self._speedups.items()}
        self._tracker.log(
            {"evaluate/prompts": float(self._clock.done)}
            | {f"evaluate/running_speedup/{method}": mean for method, mean in means.items()},
            step=self._clock.done,
        )
        if self._clock.is_time():
            told = "".join(f"{method} {mean:.2f}x  " for method, mean in means.items())
            kind = "" if self._is_timed or not told else "(theoretical)  "
            print(f"{self._name}: {self._clock.place} prompts  {told}{kind}{self._clock.left}", flush=True)

    def _count(self, record: Record) -> None:
        answers = record["answers"]
        base = answers[self._baseline]
        for method, answer in answers.items():
            if method == self._baseline:
                continue
            if any(entry.get("finish_reason") != "stop" for entry in (base, answer)):
                continue  # skipped, or cut: that says nothing of how long it would have taken
            speedup = realised_speedup(base, answer) if self._is_timed else theoretical_speedup(base, answer)
            if speedup is not None:
                self._speedups.setdefault(method, []).append(speedup)


class VerdictProgress:
    """Prints prompts judged; adds up what judging took in this run, and all invalid verdicts."""

    def __init__(self, name: str, total: int, found: Sequence[Record]) -> None:
        self._name = name
        self._clock = _Clock(total, len(found))
        self._tally = VerdictTally()
        self._count(found)
        earlier = f", {len(found)} found from an earlier run" if found else ""
        print(f"{name}: {total} prompts to judge{earlier}", flush=True)

    def add(self, records: Sequence[Record], usage: Mapping[str, float]) -> None:
        """Some prompts' verdicts are on disk; ``usage`` is what they took."""
        self._count(records)
        self._clock.done += len(records)
        self._tally.spend(usage)
        if self._clock.is_time():
            print(
                f"{self._name}: judged {self._clock.place} prompts  {self._tally}  {self._clock.left}",
                flush=True,
            )

    def figures(self) -> dict[str, float]:
        """Verdicts and invalid ones over all prompts; usage of this run."""
        return self._tally.figures()

    def _count(self, records: Sequence[Record]) -> None:
        self._tally.count(verdict for record in records for verdict in record["verdicts"].values())


class _Clock:
    """How far the work is, when it will be done, and whether to say so."""

    def __init__(self, total: int, found: int) -> None:
        self.done = self._found = found
        self._total = total
        self._begun = time.monotonic()
        self._said = float("-inf")

    @property
    def place(self) -> str:
        return f"{self.done}/{self._total}"

    @property
    def left(self) -> str:
        seconds = time.monotonic() - self._begun
        minutes = seconds / max(self.done - self._found, 1) * (self._total - self.done) / 60
        return f"eta {minutes:.1f} min"

    def is_time(self) -> bool:
        """Whether the last line was long enough ago, or this is the last one."""
        now = time.monotonic()
        if now - self._said < _PAUSE_S and self.done < self._total:
            return False
        self._said = now
        return True
