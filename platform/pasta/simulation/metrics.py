"""Metrics of a simulated run: latencies, throughput, utilisation of the replicas, cost of an answer."""

from collections.abc import Iterable
from dataclasses import dataclass

from pasta.simulation.cluster import SimulatedRun
from pasta.simulation.load import Kind
from pasta.simulation.replica import Shape
from pasta.statistics import percentile

#: Replicas keep up if at least this share of the requests that arrive in a span is answered in it, or all but so many:
#: the last one arrives as the span ends, and the one before it may be under way.
_KEEPS_UP, _UNDER_WAY = 0.95, 2


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of a sample, in its own unit."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Distribution":
        """Raises ``ValueError`` if there are none."""
        ordered = sorted(values)
        if not ordered:
            raise ValueError("no values to summarise")
        percentiles = (percentile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99))
        return cls(sum(ordered) / len(ordered), *percentiles)


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of a run. Seconds: ``queue_s`` until a slot is free, ``ttft_s`` until the first token, ``total_s`` to
    the end, all from the request's arrival; ``token_s`` a token of the plain answer after the first.

    ``requests_s`` answers and ``plain_tokens_s`` tokens of plain answers end a second; ``busy`` is the share of time
    that a replica steps, ``lanes`` the tokens that a step emits, ``fill`` their share of the rows of its forwards of
    lanes (which pad each request to the most lanes that one has), ``present`` the requests that are there.
    ``gpu_hours_1000`` is for a thousand answers. ``keeps_up`` is false if requests of an open stream arrive faster than
    they are answered: latencies then depend on the length of the run alone. ``covered`` is the share of steps that lies
    within what was calibrated, ``largest`` the most requests, lanes and cached tokens of a step.

    None is what too few requests cannot say: rates and cost if no answer ends in the span, ``busy`` and ``present`` if
    the span has no length, ``lanes`` if no step begins in it.
    """

    requests: int
    queue_s: Distribution
    ttft_s: Distribution
    total_s: Distribution
    token_s: Distribution
    requests_s: float | None
    plain_tokens_s: float | None
    busy: float | None
    lanes: float | None
    fill: float
    present: float | None
    gpu_hours_1000: float | None
    spills: float
    returns: float
    keeps_up: bool
    covered: float
    largest: Shape


def metrics_of(run: SimulatedRun, gpus_per_replica: float, load: Kind = "poisson") -> RunMetrics:
    """Compute the metrics of a run. Rates of a trace are up to the end of the last answer, those of other loads between
    the first and the last arrival."""
    served, begun, ended = run.served, run.begun, run.ended
    if load == "trace":
        begun, ended = type(begun)(now=begun.now), run.last
    seconds, steps = ended.now - begun.now, ended.steps - begun.steps
    answers = ended.ended - begun.ended
    requests_s = answers / seconds if answers and seconds else None
    return RunMetrics(
        requests=len(served),
        queue_s=Distribution.of(request.queue_s for request in served),
        ttft_s=Distribution.of(request.ttft_s for request in served),
        total_s=Distribution.of(request.total_s for request in served),
        token_s=Distribution.of(request.token_s for request in served),
        requests_s=requests_s,
        plain_tokens_s=(ended.plain_tokens - begun.plain_tokens) / seconds if requests_s else None,
        busy=min(1.0, (ended.busy_s - begun.busy_s) / seconds / run.replicas) if seconds else None,
        lanes=(ended.emitted - begun.emitted) / steps if steps else None,
        fill=run.fill,
        present=(ended.present_s - begun.present_s) / seconds if seconds else None,
        gpu_hours_1000=run.replicas * gpus_per_replica / requests_s * 1000 / 3600 if requests_s else None,
        spills=sum(request.spills for request in served) / len(served),
        returns=sum(request.returns for request in served) / len(served),
        keeps_up=load != "poisson" or answers >= min(_KEEPS_UP * len(served), len(served) - _UNDER_WAY),
        covered=run.covered,
        largest=run.largest,
    )
