"""What Prometheus is told of an answer, and the Grafana board that asks for it."""

import asyncio
import itertools
import json
import re
from types import SimpleNamespace

import pytest

from serve.observe import metrics
from serve.observe.metrics import Answered, of_admission, of_answer, of_engine, of_response
from tests.support.metrics import METRICS, exported
from tests.support.paths import ROOT

BOARD = json.loads((ROOT / "docker" / "grafana" / "pasta.json").read_text())
PASTA = {
    "threads": 4,
    "steps": 50,
    "critical_path": 51,
    "tokens": 201,
    "timings": {"queue_ms": 20.0, "ttft_ms": 100.0, "total_ms": 1100.0, "sync_wait_ms": 250.0},
}


def answered(finish_reason="stop", pasta=PASTA):
    return Answered("pasta-atlas", "parallel", finish_reason, 1.2, 0.11, 30, pasta)


def values(observations):
    return {observation.name: observation.value for observation in observations}


def test_an_answer_is_observed_once_in_every_way():
    found = of_answer(answered())
    assert all(o.labels.items() >= {"model": "pasta-atlas", "mode": "parallel"}.items() for o in found)
    assert values(found) == {
        "pasta_requests": 1,
        "pasta_prompt_tokens": 30,
        "pasta_generation_tokens": 201,
        "pasta_time_to_first_token_seconds": 0.11,
        "pasta_inter_token_latency_seconds": pytest.approx(0.02),  # a second over fifty steps of one thread
        "pasta_time_per_output_token_seconds": pytest.approx(0.005),
        "pasta_e2e_request_latency_seconds": 1.2,
        "pasta_request_queue_time_seconds": 0.02,
        "pasta_request_sync_wait_seconds": 0.25,
        "pasta_request_prompt_tokens": 30,
        "pasta_request_generation_tokens": 201,
        "pasta_threads": 4,
        "pasta_request_threads": 4,
        "pasta_request_parallelism_ratio": pytest.approx(4.02),
    }


@pytest.mark.parametrize("reason", ["error", "abandoned"])
def test_an_answer_that_broke_off_is_counted_and_its_times_are_not(reason):
    (only,) = of_answer(answered(reason, {}))
    assert (only.name, only.value, only.labels["finish_reason"]) == ("pasta_requests", 1, reason)


def test_an_answer_of_one_token_has_no_time_between_tokens():
    one = {**PASTA, "tokens": 1, "critical_path": 1, "steps": 0}
    assert not values(of_answer(answered(pasta=one))).keys() & {
        "pasta_inter_token_latency_seconds",
        "pasta_time_per_output_token_seconds",
        "pasta_request_parallelism_ratio",
    }


def every_observation():
    admission = SimpleNamespace(
        held={"short": 100, "long": 900}, budget_tokens=2000, num_waiting={"short": 0, "long": 3}
    )
    yield from of_answer(answered())
    yield from of_engine("pasta-atlas", SimpleNamespace(num_active=2, num_waiting=1, num_lanes=7), 8)
    yield from of_admission("pasta-atlas", admission)
    yield of_response("/v1/models/{name:path}", 404)


def test_observations_fit_their_metrics():
    for name, value, labels in every_observation():
        metric = METRICS[name]
        assert set(labels) == set(metric.labels)
        assert all(isinstance(label, str) for label in labels.values())
        if metric.kind == "counter":
            assert value > 0  # Ray refuses to add nothing


def test_cache_use_is_a_share():
    engine = SimpleNamespace(num_active=2, num_waiting=0, num_lanes=0)
    assert values(of_engine("m", engine, 8))["pasta_kv_cache_usage_ratio"] == 0.25


def test_labels_have_few_values():
    allowed = {"model", "mode", "finish_reason", "endpoint", "status", "length"}
    assert {label for metric in METRICS.values() for label in metric.labels} <= allowed


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_metric_s_name_says_its_unit_and_its_buckets_grow(metric):
    assert re.fullmatch(r"pasta(_[a-z0-9]+)+", metric.name)
    assert not metric.name.endswith("_total")  # Prometheus' client puts it there
    assert (metric.kind == "histogram") == bool(metric.buckets)
    assert all(0 < a < b for a, b in itertools.pairwise(metric.buckets))
    if "latency" in metric.name or "time" in metric.name or "wait_" in metric.name:
        assert metric.name.endswith("_seconds")


def test_ray_takes_every_metric():
    made = metrics.Metrics(METRICS.values())
    made.record(every_observation())


class BusyEngine:
    """Goes on by ten steps whenever it is looked at."""

    num_active, num_waiting, num_lanes = 3, 2, 9
    prefixes = SimpleNamespace(counts=SimpleNamespace(looked_up=70, hit=40, copied=20, ahead=30))

    def __init__(self):
        self.steps = 0

    @property
    def num_steps(self):
        self.steps += 10
        return self.steps


def reported(times, report):
    """What a reporter records until it was done so often."""
    found, batches = [], []

    def record(observations):
        found.extend(observations)
        batches.append(None)
        if len(batches) == times:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(report(metrics.Reporter(record)))
    return found


def test_engines_are_reported_again_and_again_and_their_steps_once():
    engines = {"a": BusyEngine()}
    found = reported(3, lambda reporter: reporter.engines(engines, 8, every_s=0))
    assert [o.value for o in found if o.name == "pasta_active_lanes"] == [9, 9, 9]
    assert [o.value for o in found if o.name == "pasta_engine_steps"] == [10, 10, 10]
    prefixes = {o.name: o.value for o in found if o.name.startswith("pasta_prefix")}
    assert prefixes == {
        "pasta_prefix_cache_queries": 70,
        "pasta_prefix_cache_ahead": 30,
        "pasta_prefix_cache_hits": 40,
        "pasta_prefix_cache_copies": 20,
    }


def test_the_budget_is_reported_as_it_changes():
    admission = SimpleNamespace(
        held={"short": 1, "long": 0}, budget_tokens=100, num_waiting={"short": 0, "long": 2}
    )
    found = reported(2, lambda reporter: reporter.admission({"a": admission}, every_s=0))
    assert {o.labels.get("length") for o in found} == {"short", "long", None}
    assert {o.labels["model"] for o in found} == {"a"}
    assert [o.value for o in found if o.name == "pasta_admission_budget_tokens"] == [100, 100]


# -- the board -------------------------------------------------------------------------------------------


def panels():
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def queries():
    yield from (target["expr"] for panel in panels() for target in panel["targets"])
    yield from (
        variable["query"]["query"] for variable in BOARD["templating"]["list"] if variable["type"] == "query"
    )


def named(query):
    """The metrics in a query, without what Prometheus puts behind a histogram's name."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bray_\w+", query)}


def test_every_query_names_metrics_that_exist():
    known = {exported(metric) for metric in METRICS.values()}
    for query in queries():
        assert named(query), query
        assert named(query) <= known, query


def test_every_metric_is_on_the_board():
    shown = set().union(*map(named, queries()))
    assert {exported(metric) for metric in METRICS.values()} == shown


def test_queries_group_and_select_by_labels_that_their_metrics_have():
    by_name = {exported(metric): metric for metric in METRICS.values()}
    for query in queries():
        labels = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
        labels |= set(re.findall(r"(\w+)=~", query))
        own = set.intersection(*(set(by_name[name].labels) for name in named(query)))
        assert labels <= own | {"le", "replica"}, query


def test_a_chosen_model_is_shown_alone():
    by_name = {exported(metric): metric for metric in METRICS.values()}
    for query in queries():
        if not query.startswith("label_values"):
            for name in named(query):
                of_models = "model" in by_name[name].labels
                assert ('{model=~"$model"}' in query) == of_models, query


def test_only_histograms_have_quantiles_and_only_counters_rates():
    kinds = {exported(metric): metric.kind for metric in METRICS.values()}
    for query in queries():
        if query.startswith("label_values"):
            continue
        for name in named(query):
            assert ("rate(" in query) == (kinds[name] != "gauge"), query
            assert not (kinds[name] == "histogram" and f"{name}_sum" in query), "a sum is an estimate"
            assert (f"{name}_bucket" in query or f"{name}_count" in query) == (kinds[name] == "histogram"), (
                query
            )


def test_replicas_that_have_stopped_are_not_shown_and_removed_models_not_offered():
    """Ray drops their gauges, and exports counters until its node ends. One that nobody has asked has no counter."""
    kinds = {exported(metric): metric.kind for metric in METRICS.values()}
    for query in queries():
        if query.startswith("label_values"):
            assert {kinds[name] for name in named(query)} == {"gauge"}, query
        if "by (replica)" in query and "rate(" in query:
            assert query.endswith(" > 0"), query


def test_no_panel_covers_another():
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
