"""Metrics, their targets, and the tables that show them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pasta.markdown import markdown
from pasta.statistics import Estimate

Sense = Literal["at least", "at most"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured number. ``low`` and ``high`` bound its 95% interval where there is one.

    ``target`` is what it should reach, in the direction of ``sense``; without one it is only reported.
    """

    key: str
    label: str
    value: float
    target: float | None = None
    sense: Sense = "at least"
    low: float | None = None
    high: float | None = None
    count: int | None = None
    note: str = ""

    @classmethod
    def of(cls, key: str, label: str, estimate: Estimate, **rest: Any) -> "Metric":
        """Make a metric of an estimate with its interval; a single value has none: it resamples to itself."""
        low, high = (estimate.low, estimate.high) if estimate.count > 1 else (None, None)
        return cls(key, label, estimate.value, low=low, high=high, count=estimate.count, **rest)

    @property
    def passed(self) -> bool | None:
        """Whether the target is reached; ``None`` without a target."""
        if self.target is None:
            return None
        return self.value >= self.target if self.sense == "at least" else self.value <= self.target

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values, with ``passed``."""
        return {**asdict(self), "passed": self.passed}


#: What a report's function makes of records: metrics, and tables by title.
Found = tuple[list[Metric], dict[str, str]]


@dataclass
class Report:
    """Metrics, and tables by title."""

    metrics: list[Metric] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)

    def add(self, metrics: Iterable[Metric], tables: Mapping[str, str] | None = None) -> None:
        """Add metrics and tables."""
        self.metrics += metrics
        self.tables.update(tables or {})

    def markdown(self) -> str:
        """The metrics as one table, then every other table under its title."""
        return "\n\n".join(
            [metrics_table(self.metrics), *(f"**{t}**\n\n{table}" for t, table in self.tables.items())]
        )


def rate_of(pair: Sequence[float]) -> float:
    """Tokens a second, from tokens and seconds."""
    return pair[0] / pair[1]


def metrics_table(metrics: Iterable[Metric]) -> str:
    """The metrics as a Markdown table, in the order given."""
    rows = []
    for metric in metrics:
        interval = "" if metric.low is None else f"{metric.low:.3f} to {metric.high:.3f}"
        target = "" if metric.target is None else f"{metric.sense} {metric.target:g}"
        verdict = {None: "", True: "yes", False: "**no**"}[metric.passed]
        rows.append([metric.label, f"{metric.value:.3f}", interval, target, verdict, metric.note])
    return markdown(["figure", "value", "95% interval", "target", "reached", "note"], rows)
