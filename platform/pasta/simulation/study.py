"""A study: simulates the same load decoded sequentially and in parallel, at several loads, and finds how many replicas
reach the goals."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import fmean, geometric_mean
from typing import Any

from pasta.placement import Policy
from pasta.simulation.cluster import Cluster
from pasta.simulation.config import GoalsSection, SimulateConfig
from pasta.simulation.costs import StepCosts
from pasta.simulation.load import LoadSection, make_arrivals
from pasta.simulation.metrics import RunMetrics, metrics_of
from pasta.simulation.script import Script
from pasta.simulation.slots import Schedule
from pasta.simulation.trace import Workload
from pasta.statistics import grouped

#: Called after each run with its series, load, number of replicas and metrics.
Tell = Callable[["Point"], None]


@dataclass(frozen=True, slots=True)
class Series:
    """One way to decode: sequentially (no placement), or in parallel with a placement."""

    placement: Policy | None

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "sequential" if self.placement is None else f"parallel, {self.placement}"


@dataclass(frozen=True, slots=True)
class Point:
    """One run: a series at a load (in the unit that its kind is swept by) on so many replicas."""

    series: Series
    load: float
    replicas: int
    metrics: RunMetrics

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        figures = asdict(self.metrics)
        return {"series": self.series.name, "load": self.load, "replicas": self.replicas, "figures": figures}


@dataclass(frozen=True, slots=True)
class Crossover:
    """The load at which parallel decoding stops being faster. ``speedups`` are sequential seconds over its own, the
    median answer, at each load at which both keep up; ``until`` is the load at which they fall to 1, linear in between,
    ``None`` if they do not. ``throughput`` is its largest rate of answers over sequential decoding's, ``None`` where
    no answer of one of them ended before the last request came."""

    series: Series
    speedups: dict[float, float]
    until: float | None
    throughput: float | None


@dataclass(frozen=True, slots=True)
class Size:
    """The fewest replicas with which a series reaches the goals, ``None`` if the most allowed do not; ``point`` is
    the run with them (or with the most), ``tried`` every run, by rising number of replicas."""

    series: Series
    replicas: int | None
    point: Point
    tried: tuple[Point, ...]


@dataclass(slots=True)
class StudyResults:
    """The results of a study."""

    points: list[Point] = field(default_factory=list)
    crossovers: list[Crossover] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        return {
            "points": [point.to_dict() for point in self.points],
            "crossovers": [
                {
                    **asdict(found),
                    "series": found.series.name,
                    "speedups": [{"load": load, "speedup": value} for load, value in found.speedups.items()],
                }
                for found in self.crossovers
            ],
            "sizes": [
                {
                    "series": size.series.name,
                    "replicas": size.replicas,
                    "point": size.point.to_dict(),
                    "tried": [point.to_dict() for point in size.tried],
                }
                for size in self.sizes
            ],
        }


class Study:
    """Runs the simulations of a configuration. ``overhead_s`` is the calibration's, added to every step."""

    def __init__(
        self, config: SimulateConfig, trace: Workload, costs: StepCosts, overhead_s: float = 0.0
    ) -> None:
        self.config, self.trace = config, trace
        self.costs, self.overhead_s = costs, overhead_s
        self.schedules: dict[Script, Schedule] = {}

    def trace_metrics(self) -> dict[str, float]:
        """Means over the trace's answers; that of the speedup is geometric."""
        both = self.trace.scripts
        steps = [self._schedule(each.parallel).critical_path for each in both]
        speedups = [each.parallel.plain_tokens / count for each, count in zip(both, steps, strict=True)]
        return {
            "answers": len(both),
            "left_out": len(self.trace.left_out),
            "prompt_tokens": fmean(each.parallel.prompt_tokens for each in both),
            "plain_tokens": fmean(each.parallel.plain_tokens for each in both),
            "threads": fmean(len(each.parallel.tokens) for each in both),
            "critical_path": fmean(steps),
            "theoretical_speedup": geometric_mean(speedups),
        }

    def _schedule(self, script: Script) -> Schedule:
        if script not in self.schedules:
            self.schedules[script] = Schedule.of(script, jump_forward=self.config.engine.jump_forward)
        return self.schedules[script]

    @property
    def series(self) -> list[Series]:
        """All series of the configuration, sequential first."""
        sequential = [Series(None)] if "sequential" in self.config.modes else []
        parallel = [Series(placement) for placement in self.config.placements]
        return [*sequential, *(parallel if "parallel" in self.config.modes else [])]

    @property
    def loads(self) -> list[LoadSection]:
        """Every load of the sweep; without one the load itself."""
        load, sweep = self.config.load, self.config.sweep
        return [load] if sweep is None else [at_load(load, value) for value in sweep.values]

    def run(self, tell: Tell = lambda point: None) -> StudyResults:
        """Simulate everything. Raises ``UserError`` if a trace's times are asked for and it has none."""
        results = StudyResults()
        for load in self.loads:
            for series in self.series:
                results.points.append(self.point(series, load, self.config.cluster.replicas))
                tell(results.points[-1])
        results.crossovers = crossovers(results.points)
        if self.config.sizing is not None:
            results.sizes = [self.size(series, tell) for series in self.series]
        return results

    def point(self, series: Series, load: LoadSection, replicas: int) -> Point:
        """One run."""
        config, scripts, is_trace = self.config, self.trace.scripts, load.kind == "trace"
        requests, warmup = config.requests, int(config.warmup * config.requests)
        if load.users is not None and warmup:
            warmup = max(warmup, load.users)
        if is_trace:
            requests, warmup = len(scripts), 0
            # The cluster gives them out as requests come; a log has its lines in the order in which answers ended.
            scripts = sorted(scripts, key=lambda both: both.arrival_s or 0.0)
        arrivals = make_arrivals(load, config.seed, self.trace.arrivals_s if is_trace else ())
        cluster = Cluster(
            replace(config.cluster, replicas=replicas),
            config.engine,
            self.costs,
            [both.sequential if series.placement is None else both.parallel for both in scripts],
            arrivals,
            placement=series.placement or "local",
            overhead_s=self.overhead_s,
            schedules=self.schedules,
        )
        run = cluster.run(requests, warmup)
        metrics = metrics_of(run, config.cluster.gpus_per_replica, load.kind)
        return Point(series, float(getattr(load, load.swept) or 1.0), replicas, metrics)

    def size(self, series: Series, tell: Tell = lambda point: None) -> Size:
        """The fewest replicas that reach the goals at the configuration's own load: doubled until they do, then
        halved in between."""
        sizing = self.config.sizing
        assert sizing is not None
        tried: dict[int, Point] = {}

        def reaches(replicas: int) -> bool:
            tried[replicas] = self.point(series, self.config.load, replicas)
            tell(tried[replicas])
            return meets(tried[replicas].metrics, sizing.goals)

        low, high = 0, 1
        while not (found := reaches(high)) and high < sizing.most_replicas:
            low, high = high, min(2 * high, sizing.most_replicas)
        while found and high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if reaches(middle) else (middle, high)
        runs = tuple(tried[replicas] for replicas in sorted(tried))
        return Size(series, high if found else None, tried[high], runs)


def at_load(load: LoadSection, value: float) -> LoadSection:
    """The same load, with another value of the key that a sweep varies for its kind."""
    if load.kind == "users":
        return replace(load, users=int(value))
    return replace(load, rate=value) if load.kind == "poisson" else replace(load, speed=value)


def meets(metrics: RunMetrics, goals: GoalsSection) -> bool:
    """Whether a run keeps up and reaches every goal."""
    return metrics.keeps_up and all(goal_value(metrics, name) <= goal for name, goal in goals.given.items())


def goal_value(metrics: RunMetrics, name: str) -> float:
    """The metric that a goal such as ``total_p95_s`` bounds."""
    what, which, _ = name.split("_")
    return float(getattr(getattr(metrics, f"{what}_s"), which))


def crossovers(points: Sequence[Point]) -> list[Crossover]:
    """The crossover of every parallel series, if there is a sequential one to compare it with."""
    by_series = grouped(points, lambda point: point.series)
    base = by_series.pop(Series(None), [])
    return [_crossover(series, base, own) for series, own in by_series.items()] if base else []


def _crossover(series: Series, base: Sequence[Point], own: Sequence[Point]) -> Crossover:
    speedups = {
        point.load: slow.metrics.total_s.p50 / point.metrics.total_s.p50
        for slow, point in zip(base, own, strict=True)
        if slow.metrics.keeps_up and point.metrics.keeps_up
    }
    until = None
    rising = list(speedups.items())
    if rising and rising[0][1] <= 1:
        until = rising[0][0]
    for (low, before), (high, after) in pairwise(rising):
        if until is None and after <= 1:
            until = low + (high - low) * (before - 1) / (before - after)
    most, sequential = (max(point.metrics.requests_s or 0.0 for point in points) for points in (own, base))
    return Crossover(series, speedups, until, most / sequential if most and sequential else None)
