"""The record of a decoded response: which thread emitted which token at which step and time."""

from collections.abc import Sequence
from dataclasses import dataclass

from pasta.interpreter.thread import Thread


@dataclass(frozen=True, slots=True)
class ThreadTrace:
    """One thread. ``steps[i]`` is the critical-path step of ``token_ids[i]`` (from 1), ``times[i]`` the
    driver's clock in seconds. ``waits`` are (from, to) steps spent at syncs."""

    id: int
    path: tuple[int, ...]
    parent: int | None
    depth: int
    topic_ids: tuple[int, ...]
    estimate: int
    token_ids: tuple[int, ...]
    steps: tuple[int, ...]
    times: tuple[float, ...]
    waits: tuple[tuple[int, int], ...]
    forked_at: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A response's threads in creation order; ``num_tokens`` counts tags and the given ``<async>`` too."""

    threads: tuple[ThreadTrace, ...]
    critical_path: int
    num_tokens: int

    def lanes(self) -> list[int]:
        """How many threads emit a token at each step: ``critical_path`` entries."""
        counts = [0] * self.critical_path
        for thread in self.threads:
            for step in thread.steps:
                counts[step - 1] += 1
        return counts


def trace_of(threads: Sequence[Thread], critical_path: int, num_tokens: int) -> Trace:
    """Copy the threads of an interpreter into a trace."""
    forked_at = {child: t.steps[before - 1] for t in threads for before, child in t.children}
    return Trace(
        tuple(
            ThreadTrace(
                id=t.id,
                path=t.path,
                parent=t.parent,
                depth=t.depth,
                topic_ids=t.topic_ids,
                estimate=t.estimate,
                token_ids=tuple(t.tokens),
                steps=tuple(t.steps),
                times=tuple(t.times),
                waits=tuple(t.waits),
                forked_at=forked_at.get(t.id, 0),
            )
            for t in threads
        ),
        critical_path,
        num_tokens,
    )
