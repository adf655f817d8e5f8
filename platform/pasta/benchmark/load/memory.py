"""Whether the memory of a service's processes grows, by samples of each."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pasta.markdown import markdown

#: MiB of each process, by what it is, in the order in which they were sampled.
Samples = Mapping[str, Sequence[float]]
#: Allowed growth in the second half of a process's life: a share, plus MiB.
GROWTH, SLACK_MIB = 0.10, 16.0
#: Fewest samples of a process to judge its growth.
_ENOUGH = 12


def growth(samples: Sequence[float]) -> tuple[float, float]:
    """Medians of the second and of the last quarter of a process's memory, in MiB.

    The first quarter is warm-up: caches fill, allocators settle.
    """
    quarter = len(samples) // 4
    return statistics.median(samples[quarter : 2 * quarter]), statistics.median(samples[-quarter:])


def growing(samples: Samples) -> list[str]:
    """A line for each process whose memory grows by more than is allowed."""
    found = []
    for name, each in samples.items():
        if len(each) >= _ENOUGH:
            before, after = growth(each)
            if after > before * (1 + GROWTH) + SLACK_MIB:
                found.append(f"memory of {name} grew from {before:.0f} to {after:.0f} MiB")
    return found


def memory_table(samples: Samples) -> str:
    """A table of MiB by process, of those with enough samples."""
    rows: list[list[Any]] = []
    for name, each in samples.items():
        if len(each) >= _ENOUGH:
            before, after = growth(each)
            rows.append([name, len(each), f"{before:.0f}", f"{after:.0f}", f"{max(each):.0f}"])
    return markdown(["process", "samples", "second quarter, MiB", "last quarter, MiB", "most"], rows)
