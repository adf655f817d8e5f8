"""The service's Prometheus metrics, with the names that vLLM and others use.

Ray exports every metric on each node's metrics port, with ``ray_`` before its name and ``_total`` behind a counter's:
``ray_pasta_time_to_first_token_seconds_bucket``. Labels have few values: a model's configured name, a mode, a finish
reason; never a key, a prompt or a request. Ray Serve adds application, deployment and replica.

Ray exports each observation of a histogram as the middle of its bucket: quantiles are as exact as the buckets, but
``_sum`` is an estimate. So values to be summed, or divided by a count for a mean, are counters too.

The functions named ``of_…`` turn facts into observations; ``Metrics`` records them with Ray.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

if TYPE_CHECKING:
    from pasta.engine import Engine
    from serve.interpreter.admission import Admission

MetricKind = Literal["counter", "gauge", "histogram"]

# Buckets, in seconds and in tokens: those of vLLM's metrics of the same names where it has them.
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_REQUEST_S = (
    *(0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0),
    *(10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 600.0),
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_THREADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_PARALLELISM = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0)

_OF = ("model", "mode")
#: Ray exports every few seconds, and drops gauges that were not set since.
REPORT_S = 2.0


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. ``labels`` come beside Ray Serve's; ``buckets`` are a histogram's upper bounds."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


#: Recorded by the Gateway, for whole requests.
HTTP = (
    MetricSpec(
        "pasta_http_responses", "counter", "HTTP responses by route and status", ("endpoint", "status")
    ),
    MetricSpec(
        "pasta_requests",
        "counter",
        "Answers by how they ended: stop, length, repetition, error, or abandoned by the client",
        (*_OF, "finish_reason"),
    ),
    MetricSpec(
        "pasta_slow_readers", "counter", "Responses that were given up: their clients did not read them"
    ),
    MetricSpec(
        "pasta_prompt_tokens",
        "counter",
        "Tokens of prompts that were answered, once however many answers each has",
        _OF,
    ),
    MetricSpec("pasta_generation_tokens", "counter", "Tokens decoded for answers, tags counted", _OF),
    MetricSpec("pasta_threads", "counter", "Threads of answers, the main ones counted", _OF),
    MetricSpec(
        "pasta_time_to_first_token_seconds",
        "histogram",
        "From a request's arrival to the first text that is sent",
        _OF,
        _FIRST_TOKEN_S,
    ),
    MetricSpec(
        "pasta_inter_token_latency_seconds",
        "histogram",
        "Between two tokens of one thread, the mean of an answer, waits at syncs counted",
        _OF,
        _TOKEN_S,
    ),
    MetricSpec(
        "pasta_time_per_output_token_seconds",
        "histogram",
        "From the first token to the last, over the other tokens of the answer: parallel threads make it less",
        _OF,
        _TOKEN_S,
    ),
    MetricSpec(
        "pasta_e2e_request_latency_seconds",
        "histogram",
        "From a request's arrival to the end of its answer",
        _OF,
        _REQUEST_S,
    ),
    MetricSpec(
        "pasta_request_queue_time_seconds",
        "histogram",
        "Waiting for a slot of the home decoder's engine",
        _OF,
        _FIRST_TOKEN_S,
    ),
    MetricSpec(
        "pasta_request_sync_wait_seconds",
        "histogram",
        "Spent by the main thread waiting at syncs, and at the end, for its chunks",
        _OF,
        _REQUEST_S,
    ),
    MetricSpec("pasta_request_prompt_tokens", "histogram", "Tokens of a prompt", _OF, _TOKENS),
    MetricSpec(
        "pasta_request_generation_tokens", "histogram", "Tokens of an answer, tags counted", _OF, _TOKENS
    ),
    MetricSpec(
        "pasta_request_threads", "histogram", "Threads of an answer, the main one counted", _OF, _THREADS
    ),
    MetricSpec(
        "pasta_request_parallelism_ratio",
        "histogram",
        "Realised parallelism: tokens of an answer over the engine's steps that it took",
        _OF,
        _PARALLELISM,
    ),
)
#: Recorded by the Interpreter: admission and placement.
PLACEMENT = (
    MetricSpec(
        "pasta_admitted_tokens",
        "gauge",
        "Tokens of a model's admission budget that are held, at one Interpreter",
        ("model", "length"),
    ),
    MetricSpec("pasta_admission_budget_tokens", "gauge", "That budget in tokens", ("model",)),
    MetricSpec(
        "pasta_admission_queue_requests",
        "gauge",
        "Requests that wait for room in that budget",
        ("model", "length"),
    ),
    MetricSpec("pasta_spills", "counter", "Chunks that were decoded away from their home"),
    MetricSpec("pasta_returns", "counter", "Chunks that their home took back unfinished"),
    MetricSpec(
        "pasta_redispatches",
        "counter",
        "Main threads and chunks that went on elsewhere when their replica was lost",
    ),
)
#: Recorded by each Decoder: its engines.
ENGINE = (
    MetricSpec(
        "pasta_num_requests_running", "gauge", "Requests, or chunks of some, in an engine's slots", ("model",)
    ),
    MetricSpec(
        "pasta_num_requests_waiting", "gauge", "Requests that wait for a slot of an engine", ("model",)
    ),
    MetricSpec(
        "pasta_active_lanes", "gauge", "Threads that decode a token in an engine's next step", ("model",)
    ),
    MetricSpec(
        "pasta_kv_cache_usage_ratio", "gauge", "Slots in use over all slots of an engine: 0 to 1", ("model",)
    ),
    MetricSpec("pasta_engine_steps", "counter", "Steps of an engine", ("model",)),
    MetricSpec(
        "pasta_prefix_cache_queries",
        "counter",
        "Tokens of prompts that an engine has looked for in its cache",
        ("model",),
    ),
    MetricSpec("pasta_prefix_cache_hits", "counter", "Those that it did not compute again", ("model",)),
    MetricSpec("pasta_prefix_cache_copies", "counter", "Hits that it copied from another slot", ("model",)),
    MetricSpec(
        "pasta_prefix_cache_ahead",
        "counter",
        "Tokens of conversations' next turns that an idle engine has computed",
        ("model",),
    ),
    MetricSpec(
        "pasta_leases_expired", "counter", "Requests that nobody claimed in time, and that were given up"
    ),
)


class Observation(NamedTuple):
    """One value to record: added to a counter, set on a gauge, observed in a histogram."""

    name: str
    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer that ended, as the Gateway saw it. Times in seconds since the request arrived.

    ``finish_reason`` is stop, length or repetition; error if it failed; abandoned if the client went away.
    ``prompt_tokens`` is 0 for all answers to a prompt but the first to finish. ``pasta`` is the answer's extension
    object, empty if the answer did not finish.
    """

    model: str
    mode: str
    finish_reason: str
    total_s: float
    first_text_s: float | None
    prompt_tokens: int
    pasta: Mapping[str, Any]


def of_answer(answered: Answered) -> list[Observation]:
    """The observations of an answer. Times only of finished answers: failed ones would make the service look faster."""
    labels = {"model": answered.model, "mode": answered.mode}
    found = [Observation("pasta_requests", 1, {**labels, "finish_reason": answered.finish_reason})]
    if not answered.pasta:
        return found
    timings, tokens = answered.pasta["timings"], answered.pasta["tokens"]
    # 0, and then not recorded, if a decoder was lost before it reported its times.
    decoding_s = max(timings["total_ms"] - timings["ttft_ms"], 0.0) / 1000
    values: dict[str, float | None] = {
        "pasta_prompt_tokens": answered.prompt_tokens or None,
        "pasta_generation_tokens": tokens or None,
        "pasta_threads": answered.pasta["threads"],
        "pasta_time_to_first_token_seconds": answered.first_text_s,
        "pasta_inter_token_latency_seconds": _over(decoding_s, answered.pasta["critical_path"] - 1) or None,
        "pasta_time_per_output_token_seconds": _over(decoding_s, tokens - 1) or None,
        "pasta_e2e_request_latency_seconds": answered.total_s,
        "pasta_request_queue_time_seconds": timings["queue_ms"] / 1000,
        "pasta_request_sync_wait_seconds": timings["sync_wait_ms"] / 1000,
        "pasta_request_prompt_tokens": answered.prompt_tokens or None,
        "pasta_request_generation_tokens": tokens,
        "pasta_request_threads": answered.pasta["threads"],
        "pasta_request_parallelism_ratio": _over(tokens, answered.pasta["steps"]),
    }
    return found + [Observation(name, value, labels) for name, value in values.items() if value is not None]


def of_engine(model: str, engine: "Engine", slots: int) -> list[Observation]:
    """The gauges of an engine with so many slots."""
    values = {
        "pasta_num_requests_running": engine.num_active,
        "pasta_num_requests_waiting": engine.num_waiting,
        "pasta_active_lanes": engine.num_lanes,
        "pasta_kv_cache_usage_ratio": engine.num_active / slots,
    }
    return [Observation(name, value, {"model": model}) for name, value in values.items()]


def of_admission(model: str, admission: "Admission") -> list[Observation]:
    """The gauges of a model's admission: tokens held, and requests that wait, of short and of long ones."""
    kinds = {
        "pasta_admitted_tokens": admission.held,
        "pasta_admission_queue_requests": admission.num_waiting,
    }
    found = [
        Observation(name, value, {"model": model, "length": kind})
        for name, values in kinds.items()
        for kind, value in values.items()
    ]
    return [*found, Observation("pasta_admission_budget_tokens", admission.budget_tokens, {"model": model})]


def of_response(endpoint: str, status: int) -> Observation:
    """The observation of an HTTP response; ``endpoint`` is the route's template, never the requested path."""
    return Observation("pasta_http_responses", 1, {"endpoint": endpoint, "status": str(status)})


class Reporter:
    """Records gauges at regular intervals. Make one for an actor's whole life."""

    def __init__(self, record: Callable[[Iterable[Observation]], None]) -> None:
        self._record = record
        self._totals: dict[tuple[str, str], int] = {}

    async def engines(
        self, engines: Mapping[str, "Engine"], slots: int, every_s: float = REPORT_S
    ) -> NoReturn:
        """Record the engines of a Decoder, by model, each with ``slots`` slots, until cancelled."""
        while True:
            for model, engine in engines.items():
                self._record([*of_engine(model, engine, slots), *self._counted(model, engine)])
            await asyncio.sleep(every_s)

    async def admission(self, admissions: Mapping[str, "Admission"], every_s: float = REPORT_S) -> NoReturn:
        """Record the admission of each model, until cancelled."""
        while True:
            for model, admission in admissions.items():
                self._record(of_admission(model, admission))
            await asyncio.sleep(every_s)

    def _counted(self, model: str, engine: "Engine") -> Iterator[Observation]:
        """What an engine's counters have gained since the last report."""
        prefixes = engine.prefixes.counts
        totals = {
            "pasta_engine_steps": engine.num_steps,
            "pasta_prefix_cache_queries": prefixes.looked_up,
            "pasta_prefix_cache_hits": prefixes.hit,
            "pasta_prefix_cache_copies": prefixes.copied,
            "pasta_prefix_cache_ahead": prefixes.ahead,
        }
        for name, now in totals.items():
            before = self._totals.get((name, model), 0)
            self._totals[name, model] = now
            if now > before:
                yield Observation(name, now - before, {"model": model})


class Metrics:
    """Some metrics of one actor. Make it in that actor: Ray Serve adds its application, deployment and replica."""

    def __init__(self, metrics: Iterable[MetricSpec]) -> None:
        from ray.serve import metrics as ray

        from serve.calls.ray_serve import export_zero

        self._metrics: dict[str, Any] = {}
        for metric in metrics:
            if metric.kind == "counter":
                made = ray.Counter(metric.name, metric.help, metric.labels)
                if not metric.labels:
                    export_zero(made)
                self._metrics[metric.name] = made.inc
            elif metric.kind == "gauge":
                self._metrics[metric.name] = ray.Gauge(metric.name, metric.help, metric.labels).set
            else:
                made = ray.Histogram(metric.name, metric.help, [*metric.buckets], metric.labels)
                self._metrics[metric.name] = made.observe

    def count(self, name: str) -> None:
        """Add 1 to a counter without labels."""
        self.record([Observation(name, 1, {})])

    def record(self, observations: Iterable[Observation]) -> None:
        """Record observations with Ray."""
        for name, value, labels in observations:
            self._metrics[name](value, dict(labels))


def _over(amount: float, count: float) -> float | None:
    return amount / count if count > 0 else None
