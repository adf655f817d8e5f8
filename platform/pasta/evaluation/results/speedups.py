"""Speedups of a recorded answer over the baseline's, from records alone."""

import statistics
from collections.abc import Mapping
from typing import Any


def realised_speedup(baseline: Mapping[str, Any], answer: Mapping[str, Any]) -> float:
    """Median seconds of the baseline's record of a prompt over those of another's; both must be timed."""
    return statistics.median(baseline["seconds"]) / statistics.median(answer["seconds"])


def theoretical_speedup(baseline: Mapping[str, Any], answer: Mapping[str, Any]) -> float | None:
    """Tokens of the baseline's record of a prompt over another's critical path (design section 3)."""
    return baseline["tokens"] / answer["critical_path"] if answer["critical_path"] else None
