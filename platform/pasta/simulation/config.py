"""The configuration of a simulation: every key of ``configs/simulate/*.yaml``."""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from pasta.bounds import check_at_most, check_positive, check_unread
from pasta.config import ConfigError, parse_config
from pasta.placement import Policy
from pasta.rows import placed, read_json
from pasta.simulation.calibration import Calibration, MeasuredCosts
from pasta.simulation.cluster import MOST_REPLICAS, ClusterSection
from pasta.simulation.costs import StepCosts
from pasta.simulation.load import LEAST, MOST, LoadSection
from pasta.simulation.replica import ReplicaSizes
from pasta.simulation.roofline import RooflineSection

_MOST_REQUESTS = 10_000_000
Mode = Literal["sequential", "parallel"]


@dataclass(frozen=True, slots=True)
class TraceSection:
    """The answers that clients request: ``atlas`` (its tasks' own, ``count`` held-out ones), a JSONL file, or the
    output directory of an annotate stage.

    A line holds ``prompt`` or ``messages``, the answer in text form under ``field`` (of an evaluation's answers:
    those of ``method``) and, if known, ``prompt_tokens`` and ``arrival_s``. ``tokenizer`` counts tokens: ``words``
    (words and punctuation marks), ``atlas`` or a directory. ``count`` of them are drawn in an order that follows from
    ``seed``; with ``shuffle: false`` they are the first ones, in the trace's order.
    """

    source: str
    tokenizer: str = "words"
    count: int | None = None
    shuffle: bool = True
    seed: int = 0
    field: str = "annotated"
    method: str | None = None

    def __post_init__(self) -> None:
        check_positive(self, "count")
        if self.source == "atlas" and self.count is None:
            raise ValueError("count: expected with source atlas, which has no end")
        if self.source == "atlas" and self.method is not None:
            raise ValueError(f"method {self.method!r}: expected with a file of an evaluation's answers only")
        if self.source != "atlas" and not self.shuffle:
            check_unread(self, "without shuffle", "seed")


@dataclass(frozen=True, slots=True)
class CostsSection:
    """What a step costs: ``file``, a calibration measured by ``python -m jobs.benchmark calibrate``, or ``roofline``,
    an estimate from what the device's maker publishes."""

    file: Path | None = None
    roofline: RooflineSection | None = None

    def __post_init__(self) -> None:
        if (self.file is None) == (self.roofline is None):
            raise ValueError("expected either a file or a roofline")

    def read(self) -> tuple[StepCosts, Calibration | None]:
        """Return the costs, and the calibration if they were measured. Raises ``UserError``."""
        if self.roofline is not None:
            return self.roofline, None
        assert self.file is not None
        with placed("costs.file"):
            calibration = read_calibration(self.file)
        return MeasuredCosts(calibration), calibration


@dataclass(frozen=True, slots=True)
class SweepSection:
    """The load at several ``values``: of ``load.rate``, ``load.users`` or ``load.speed``, whichever its kind has."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values or min(self.values) <= 0 or list(self.values) != sorted(set(self.values)):
            raise ValueError(f"values {list(self.values)}: expected positive numbers in rising order")


@dataclass(frozen=True, slots=True)
class GoalsSection:
    """Seconds that answers may take, at a percentile: ``ttft`` to the first token, ``total`` to the end, ``token``
    each token of the plain answer after the first. At least one."""

    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    total_p50_s: float | None = None
    total_p95_s: float | None = None
    token_p50_s: float | None = None
    token_p95_s: float | None = None

    def __post_init__(self) -> None:
        if not self.given:
            raise ValueError(f"expected at least one of {', '.join(f.name for f in fields(self))}")
        for name, value in self.given.items():
            if not value > 0:
                raise ValueError(f"{name} {value}: expected a positive number of seconds")

    @property
    def given(self) -> dict[str, float]:
        """The goals that are set, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SizingSection:
    """Find the number of replicas, ``most_replicas`` at most, that serves the load within ``goals``."""

    goals: GoalsSection
    most_replicas: int = 256

    def __post_init__(self) -> None:
        check_positive(self, "most_replicas")
        check_at_most(self, most_replicas=MOST_REPLICAS)


@dataclass(frozen=True, slots=True)
class SimulateConfig:
    """One study. Every run measures ``requests`` after a first share ``warmup`` of as many (or after the first of each
    user, if these are more; with ``warmup: 0`` from the first on); a trace's arrivals are measured whole.

    The answers are decoded in every mode of ``modes``, in parallel by every placement of ``placements``.
    """

    name: str
    output_dir: Path
    trace: TraceSection
    costs: CostsSection
    load: LoadSection
    engine: ReplicaSizes = field(default_factory=ReplicaSizes)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    modes: tuple[Mode, ...] = ("sequential", "parallel")
    placements: tuple[Policy, ...] = ("local",)
    requests: int = 2000
    warmup: float = 0.2
    seed: int = 0
    sweep: SweepSection | None = None
    sizing: SizingSection | None = None

    def __post_init__(self) -> None:
        for name in ("modes", "placements"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name} {list(values)}: expected at least one, each once")
        if self.requests < 2:
            raise ValueError(f"requests {self.requests}: expected at least 2")
        check_at_most(self, requests=_MOST_REQUESTS)
        if not 0 <= self.warmup <= 10:
            raise ValueError(f"warmup {self.warmup}: expected a share from 0 to 10")
        values = self.sweep.values if self.sweep is not None else ()
        swept = self.load.swept
        most, least = MOST.get(swept, math.inf), LEAST.get(swept, 0)
        if any(value > most for value in values):
            raise ValueError(f"sweep.values {list(values)}: expected {swept} of at most {most:,}")
        if any(value < least for value in values):
            raise ValueError(f"sweep.values {list(values)}: expected {swept} of at least {least:g}")
        if self.load.kind == "users" and any(value != int(value) for value in values):
            raise ValueError(f"sweep.values {list(values)}: expected numbers of users")
        if self.load.kind == "trace" and self.trace.source == "atlas":
            raise ValueError("load.kind trace: expected a trace with arrival_s; source atlas has none")
        if self.load.kind == "trace" and self.trace.shuffle:
            raise ValueError(
                "load.kind trace: expected trace.shuffle: false, which keeps lines and times together"
            )
        if self.costs.roofline is not None:
            self.costs.roofline.check_memory(self.engine.num_slots, self.engine.slot_tokens)


def read_calibration(path: Path) -> Calibration:
    """Read a calibration from a JSON file. Raises ``UserError`` for anything else."""
    data = read_json(path, expected="a calibration (python -m jobs.benchmark calibrate writes one)")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a calibration, an object with steps and prefill")
    return parse_config(data, Calibration, str(path))
