"""The area under the front of each line of methods: one number for a trade of speed against quality.

A line's area is that of all (speed, quality) that one of its methods reaches, above a reference point: speed 1.0 is
the sequential twin's. More or better points make it larger, and two lines compare whatever points they have. Intervals
are 95% percentile bootstraps over prompts; prompts are drawn for all lines at once, so that differences are paired.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pasta.evaluation.results.outcomes import PAIRWISE_BASELINE, Outcome
from pasta.statistics import Estimate, grouped, resamples

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: The reference point (speed, quality): points below it are worth nothing. A grade of 1 is a perfect answer's; of a
#: judge that compares, 0.5 is the baseline's own, and the same share of that is taken: no method comes near 0.7 there.
REFERENCE = (1.0, 0.7)
PAIRWISE_REFERENCE = (1.0, 0.7 * PAIRWISE_BASELINE)


@dataclass(frozen=True, slots=True)
class Area:
    """A line's area under the front, over ``prompts`` that every method has a speed and a quality of.

    ``gain`` is what it has over the line ``over``, the one before it; None for the first.
    """

    line: str
    methods: tuple[str, ...]
    prompts: int
    area: Estimate
    over: str | None
    gain: Estimate | None


def areas_of(
    outcomes: Mapping[str, Sequence[Outcome]],
    lines: Mapping[str, str | None],
    speed_name: str,
    reference: tuple[float, float] = REFERENCE,
) -> tuple[Area, ...]:
    """The area of every line, in the order in which lines first occur; none if no prompt is common to all methods.

    ``outcomes`` are of the methods that have a speed and a quality, ``lines`` gives each method's line.
    """
    import numpy as np

    members = grouped(outcomes, lambda name: lines[name])
    names = [name for group in members.values() for name in group]
    points = [
        {
            o.key: (math.log(speed), o.quality)
            for o in outcomes[name]
            if (speed := o.speed(speed_name)) is not None and o.quality is not None
        }
        for name in names
    ]
    common = [key for key in (points[0] if points else ()) if all(key in of for of in points)]
    if not common:
        return ()
    values = np.array([[of[key] for key in common] for of in points])  # [methods, prompts, 2]
    drawn = np.vstack([np.arange(len(common))[None], resamples(len(common))])  # [1 + resamples, prompts]
    means = np.stack([values[:, rows].mean(axis=1) for rows in drawn])  # [1 + resamples, methods, 2]
    means[..., 0] = np.exp(means[..., 0])
    out: list[Area] = []
    before: npt.NDArray[np.float64] | None = None
    for line, group in members.items():
        at = [names.index(name) for name in group]
        found = np.array([area_under([(p[0], p[1]) for p in sample[at]], reference) for sample in means])
        gain = None if before is None else _estimate(found - before, len(common))
        over = out[-1].line if out else None
        out.append(Area(line, tuple(group), len(common), _estimate(found, len(common)), over, gain))
        before = found
    return tuple(out)


def area_under(points: Sequence[tuple[float, float]], reference: tuple[float, float] = REFERENCE) -> float:
    """The area of what the points (speed, quality) dominate above ``reference``."""
    speed, quality = reference
    total = 0.0
    for faster, better in sorted(points, reverse=True):
        if faster > speed and better > quality:
            # A slower point adds only the quality that it has over faster ones.
            total += (faster - speed) * (better - quality)
            quality = better
    return total


def _estimate(values: "npt.NDArray[np.float64]", count: int) -> Estimate:
    """The first value, with the interval of the others."""
    import numpy as np

    low, high = np.quantile(values[1:], [0.025, 0.975])
    return Estimate(float(values[0]), float(low), float(high), count, count)
