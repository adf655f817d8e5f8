"""Studies: sweeps, where parallel decoding stops paying, how many replicas, measured against simulated."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pasta.errors import UserError
from pasta.simulation.cluster import ClusterSection
from pasta.simulation.compare import deviations, read_measured
from pasta.simulation.config import (
    CostsSection,
    GoalsSection,
    SimulateConfig,
    SizingSection,
    SweepSection,
    TraceSection,
)
from pasta.simulation.load import LoadSection
from pasta.simulation.metrics import Distribution
from pasta.simulation.replica import ReplicaSizes
from pasta.simulation.study import Series, Study, crossovers
from pasta.simulation.trace import Workload
from tests.support.simulations import Flat, drinks, scripts_of, some_scripts

SEQUENTIAL, LOCAL = Series(None), Series("local")
#: Lanes are free one by one, and dear where many meet.
COSTS = Flat(step_s=0.001, lane_s=0.002)


def study(scripts=None, costs=COSTS, **changes):
    config = SimulateConfig(
        name="test",
        output_dir=Path("nowhere"),
        trace=TraceSection("trace.jsonl"),
        costs=CostsSection(file=Path("costs.json")),
        load=LoadSection("poisson", rate=1.0),
        engine=ReplicaSizes(8, 1024, 64),
        cluster=ClusterSection(gpus_per_replica=2.0),
        requests=300,
    )
    trace = Workload(list(scripts or some_scripts()), {})
    return Study(replace(config, **changes), trace, costs)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: LoadSection("poisson", rate=1e300), "rate 1e.300: expected at most 10,000"),
        (lambda: LoadSection("users", users=10**9, think_s=0.0), "users 1000000000: expected at most 1,000,000"),
        (lambda: LoadSection("users", users=1, think_s=1e300), "think_s 1e.300: expected at most 1,000,000"),
        (lambda: ClusterSection(replicas=1_000_000), "replicas 1000000: expected at most 1,024"),
        (lambda: ClusterSection(request_spread=1e3), "request_spread 1000.0: expected at most 10"),
        (lambda: ClusterSection(request_s=1e308), "request_s 1e.308: expected at most 1,000,000"),
        (lambda: ClusterSection(step_factor=1e308), "step_factor 1e.308: expected at most 1,000,000"),
        (lambda: SizingSection(GoalsSection(total_p95_s=1.0), most_replicas=10**9), "expected at most 1,024"),
        (lambda: study(requests=10**12), "expected at most 10,000,000"),
        (lambda: study(sweep=SweepSection((1.0, 1e300))), "sweep.values .*: expected rate of at most 10,000"),
    ],
)  # fmt: skip
def test_a_study_without_an_end_is_refused(make, expected):
    with pytest.raises(ValueError, match=expected):
        make()


@pytest.mark.slow
def test_a_sweep_runs_every_series_at_every_load():
    outcome = study(sweep=SweepSection((1.0, 4.0)), placements=("local", "auto")).run()
    assert [(point.series.name, point.load) for point in outcome.points] == [
        (name, load) for load in (1.0, 4.0) for name in ("sequential", "parallel, local", "parallel, auto")
    ]
    assert [found.series.name for found in outcome.crossovers] == ["parallel, local", "parallel, auto"]


def test_modes_choose_the_series():
    assert study(modes=("parallel",)).series == [LOCAL]
    assert study(modes=("sequential",)).series == [SEQUENTIAL]


@pytest.mark.slow
def test_parallel_decoding_is_faster_alone_and_stops_paying_where_lanes_compete():
    (both,) = scripts_of([drinks(60, 60)])
    dear = Flat(step_s=0.01, lane_s=0.004)
    (found,) = study([both], dear, sweep=SweepSection((0.05, 0.5, 1.0))).run().crossovers
    assert found.speedups[0.05] > found.speedups[0.5] > 1 > found.speedups[1.0]
    assert 0.5 < found.until < 1.0


def test_the_crossover_is_interpolated_between_loads():
    points = study(sweep=SweepSection((1.0, 2.0, 3.0))).run().points

    def with_median(point, seconds):
        spread = replace(point.metrics.total_s, p50=seconds)
        return replace(point, metrics=replace(point.metrics, total_s=spread, keeps_up=True))

    medians = {SEQUENTIAL: [2.0, 3.0, 4.0], LOCAL: [1.0, 2.0, 8.0]}
    changed = [with_median(p, medians[p.series][int(p.load) - 1]) for p in points]
    (found,) = crossovers(changed)
    assert found.speedups == {1.0: 2.0, 2.0: 1.5, 3.0: 0.5}
    assert found.until == pytest.approx(2.5)


def test_without_an_answer_before_the_last_request_there_is_no_rate_to_compare():
    load = LoadSection("users", users=50, think_s=0.0)
    outcome = study(load=load, requests=20, warmup=0).run()
    (found,) = outcome.crossovers
    assert found.speedups
    assert found.throughput is None
    for point in outcome.points:  # all requests come at once: no time passes between them, and no step begins
        of = point.metrics
        assert {of.requests_s, of.plain_tokens_s, of.busy, of.lanes, of.present, of.gpu_hours_1000} == {None}


@pytest.mark.parametrize("requests", [2, 3, 10, 19])
def test_few_requests_that_are_answered_are_kept_up_with(requests):
    for point in study(load=LoadSection("poisson", rate=0.1), requests=requests, warmup=0).run().points:
        assert point.metrics.keeps_up
        assert point.metrics.requests_s > 0


def test_what_the_simulation_cannot_say_is_not_compared(tmp_path):
    metrics = (
        study(load=LoadSection("users", users=9, think_s=0.0), requests=2, warmup=0).run().points[0].metrics
    )
    assert "requests_s" not in [found.metric for found in deviations(measured(tmp_path, 0.5, 1.0), metrics)]


@pytest.mark.slow
def test_loads_that_are_not_kept_up_with_are_not_compared():
    outcome = study(sweep=SweepSection((0.1, 1000.0)), requests=400).run()
    assert [point.metrics.keeps_up for point in outcome.points] == [True, True, False, False]
    assert [*outcome.crossovers[0].speedups] == [0.1]


def test_more_load_is_never_faster():
    outcome = study(sweep=SweepSection((0.1, 10.0, 30.0))).run()
    for series in (SEQUENTIAL, LOCAL):
        totals = [p.metrics.total_s.mean for p in outcome.points if p.series == series]
        assert totals == sorted(totals)


def test_sizing_finds_the_fewest_replicas_that_reach_the_goals():
    goals = GoalsSection(total_p95_s=0.25)
    made = study(load=LoadSection("users", users=60, think_s=5.0), sizing=SizingSection(goals, 16))
    size = made.size(SEQUENTIAL)
    assert size.replicas is not None
    assert size.point.metrics.total_s.p95 <= 0.25
    fewer = next(point for point in size.tried if point.replicas == size.replicas - 1)
    assert fewer.metrics.total_s.p95 > 0.25
    assert size.point.metrics.gpu_hours_1000 == pytest.approx(
        2 * size.replicas / size.point.metrics.requests_s / 3.6
    )


def test_goals_out_of_reach_are_said_to_be():
    made = study(sizing=SizingSection(GoalsSection(ttft_p50_s=1e-6), 3))
    size = made.size(LOCAL)
    assert size.replicas is None
    assert [point.replicas for point in size.tried] == [1, 2, 3]


def test_a_traces_own_times_are_kept():
    scripts = [replace(both, arrival_s=100.0 + 7.0 * n) for n, both in enumerate(some_scripts())]
    trace = replace(TraceSection("trace.jsonl"), shuffle=False)
    made = study(scripts, trace=trace, load=LoadSection("trace", speed=2.0), modes=("sequential",))
    (point,) = made.run().points
    assert point.metrics.requests == len(scripts)
    assert point.metrics.requests_s == pytest.approx(2 / 7, rel=0.1)


def test_answers_of_a_trace_are_asked_for_at_their_own_times_whatever_the_order_of_its_lines():
    """A log is written as answers end: a long one that came first stands behind short ones that came later."""
    long, short = scripts_of([drinks(60, 60)]) + scripts_of([drinks(4, 4)])
    came = [replace(long, arrival_s=0.0), replace(short, arrival_s=0.01)]
    trace = replace(TraceSection("trace.jsonl"), shuffle=False)

    def totals(scripts):
        made = study(
            scripts,
            trace=trace,
            load=LoadSection("trace"),
            modes=("sequential",),
            engine=ReplicaSizes(1, 1024, 64),
        )
        return made.run().points[0].metrics.total_s

    assert totals(came[::-1]) == totals(came)


def test_times_that_a_trace_does_not_have_are_missed():
    trace = replace(TraceSection("trace.jsonl"), shuffle=False)
    with pytest.raises(UserError, match=r"load\.kind trace: 40 of the trace's 40 lines have no arrival_s"):
        study(trace=trace, load=LoadSection("trace")).run()


def test_the_theoretical_speedup_is_tokens_by_critical_path():
    (both,) = scripts_of([drinks(8, 8)])
    about = study([both]).trace_metrics()
    # 3 + 8 + 8 + 4 words and the end; 8 + 5 steps to the second chunk, its 9, the sync's 4 words and the end.
    assert about["plain_tokens"] == 24
    assert about["theoretical_speedup"] == pytest.approx(24 / about["critical_path"])


def test_the_metrics_of_a_trace_change_no_run():
    slow = ReplicaSizes(8, 1024, 64, jump_forward=False)
    plain, told = (study(some_scripts()[:4], engine=slow, requests=20) for _ in range(2))
    told.trace_metrics()
    assert told.point(LOCAL, told.config.load, 1) == plain.point(LOCAL, plain.config.load, 1)


def measured(tmp_path, ttft_s, total_s, **more):
    path = tmp_path / "measured.jsonl"
    lines = [{"arrival_s": float(n), "ttft_s": ttft_s, "total_s": total_s, **more} for n in range(9)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_measured(path)


def test_a_simulation_is_compared_with_what_was_measured(tmp_path):
    metrics = study(modes=("sequential",)).run().points[0].metrics
    ttft, total = metrics.ttft_s.p50, metrics.total_s.p50
    found = {d.metric: d for d in deviations(measured(tmp_path, ttft, 1.1 * total), metrics)}
    assert found["ttft_s.p50"].ratio == pytest.approx(1.0)
    assert found["ttft_s.p50"].within
    assert found["total_s.p50"].ratio == pytest.approx(1 / 1.1)
    assert found["total_s.p50"].within
    assert not deviations(measured(tmp_path, 2 * ttft, total), metrics)[0].within


def test_answers_a_second_are_compared_where_arrivals_are_known(tmp_path):
    assert measured(tmp_path, 0.5, 1.0).requests_s == pytest.approx(9 / 9)
    unknown = measured(tmp_path, 0.5, 1.0, arrival_s=None)
    assert unknown.requests_s is None
    metrics = study(modes=("sequential",)).run().points[0].metrics
    assert "requests_s" not in [deviation.metric for deviation in deviations(unknown, metrics)]


def test_a_measured_load_is_a_trace_if_it_holds_the_answers(tmp_path):
    assert measured(tmp_path, 0.5, 1.0, annotated="x").has_answers
    assert not measured(tmp_path, 0.5, 1.0).has_answers


def test_what_was_not_measured_is_named(tmp_path):
    with pytest.raises(UserError, match=r"measured.jsonl:1: no ttft_s, expected the seconds"):
        measured(tmp_path, None, 1.0)


def test_a_spread_is_of_one_value_at_least():
    assert Distribution.of([5.0]).p99 == 5.0
    with pytest.raises(ValueError, match="no values"):
        Distribution.of([])
