"""The interface of all decoders under comparison: decode after a prompt, and take single steps from a held state."""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pasta.stages.records import Record

#: Seconds that a decoder rests before it is measured.
_REST_S = 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a run took: ``first_s`` to the first token, ``seconds`` for the ``tokens`` after it, in ``steps``
    forwards of the model. The median and the least time of a token are less affected by other work on the machine."""

    first_s: float
    tokens: int
    seconds: float
    median_s: float
    least_s: float
    steps: int

    @classmethod
    def of(cls, begun: float, times: Sequence[float]) -> "Timing":
        """From when it began and when each token was there."""
        each = [later - sooner for sooner, later in itertools.pairwise(times)]
        return cls(times[0] - begun, len(each), sum(each), statistics.median(each), min(each), len(each))

    def to_dict(self) -> Record:
        """As a record."""
        return dataclasses.asdict(self)


class PeerSession(Protocol):
    """A state in which each step decodes one token in every sequence or lane."""

    def step_ms(self, count: int) -> list[float]:
        """Milliseconds of so many steps, after one that is not counted."""

    def close(self) -> None:
        """Free its memory."""


class Peer(Protocol):
    """One side of the comparison in one number format. ``setups`` are the settings to choose the fastest of; ``use``
    switches to one."""

    name: str
    setups: Sequence[Record]

    def use(self, setup: Record) -> None:
        """Decode with these settings from now on."""

    def decode(self, prompt: Sequence[int], count: int) -> Timing:
        """Decode ``count`` tokens greedily, one after another, after ``prompt``."""


@dataclass
class Chosen:
    """A decoder with the settings that it is measured in, by name."""

    decoder: Peer
    setup: Record = field(default_factory=dict)

    def use(self) -> Peer:
        """The decoder, switched to them, once the threads of the one before have gone to sleep: OpenMP's and ONNX
        Runtime's spin on for milliseconds after their work, on the cores that this one needs."""
        self.decoder.use(self.setup)
        time.sleep(_REST_S)
        return self.decoder


def fastest_setup(decoder: Peer, prompt: Sequence[int], count: int, prefill: bool = False) -> Record:
    """The settings in which ``decoder`` is fastest: those with the least time of a token, or until the first one
    (``prefill``), in two runs of each, taken in turn. Other work on the machine only adds to a time."""
    best: dict[int, float] = {}
    for _ in range(2 if len(decoder.setups) > 1 else 1):
        for number, setup in enumerate(decoder.setups):
            timing = Chosen(decoder, setup).use().decode(prompt, count)
            found = timing.first_s if prefill else timing.least_s
            best[number] = min(best.get(number, found), found)
    return decoder.setups[min(best, key=best.__getitem__)]


def time_steps(sessions: dict[str, tuple[PeerSession, Callable[[], Any]]], steps: int) -> Record:
    """Milliseconds of ``steps`` steps of each session, in turn.

    Each comes with the function that switches to its settings.
    """
    record: Record = {}
    for name, (session, use) in sessions.items():
        use()
        record[name] = session.step_ms(steps)
    return record


def step_ms(step: Callable[[], int], count: int) -> list[float]:
    """Milliseconds of ``count`` steps after a call that is not counted: caches are cold.

    A call of ``step`` returns how many steps it has run; those of one call take equally long.
    """
    step()
    spent: list[float] = []
    while len(spent) < count:
        begun = time.perf_counter()
        steps = step()
        spent += [round(1e3 * (time.perf_counter() - begun) / steps, 4)] * steps
    return spent[:count]
