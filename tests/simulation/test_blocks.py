"""A load that the benchmark has measured, block by block, against its simulation."""

import json
from dataclasses import replace

import pytest

from pasta.errors import UserError
from pasta.simulation.blocks import Fit, pick_prompts, read_blocks
from pasta.simulation.cluster import Cluster, ClusterSection
from pasta.simulation.config import CostsSection, SimulateConfig, TraceSection
from pasta.simulation.load import LoadSection, Users
from pasta.simulation.replica import ReplicaSizes
from pasta.simulation.roofline import RooflineSection
from pasta.simulation.study import Study
from pasta.simulation.trace import Traced, Workload
from tests.support.simulations import Flat, drinks, scripts_of

SERVICE = ClusterSection(replicas=2, hop_s=0.0, request_s=0.02, step_factor=1.5, cores=2, token_s=0.0015)
COSTS = Flat(step_s=0.01, lane_s=0.0005, token_s=0.0001)
SIZES = ReplicaSizes(num_slots=4, jump_forward=False)
SCRIPTS = scripts_of([drinks(5 + n, 9 + n % 4) for n in range(12)])
BLOCKS = [(clients, way) for clients in (1, 4, 12) for way in ("sequential", "parallel")]


def study(**section):
    """The service as its calibration and configuration have it, before anything is fitted."""
    config = SimulateConfig(
        name="fit",
        output_dir="out",
        trace=TraceSection("atlas", count=12),
        costs=CostsSection(roofline=RooflineSection(1e9, 2, 2, 2, 8, 1e12, 1e12, 1e12)),
        load=LoadSection("users", users=1, think_s=0.0),
        engine=SIZES,
        cluster=ClusterSection(replicas=2, hop_s=0.0, **section),
    )
    return Study(config, Workload(SCRIPTS, {}), COSTS)


def records(section=SERVICE):
    """The benchmark's file, measured on a simulated service; prompts are numbered."""
    prompts = [[{"role": "user", "content": f"prompt {number}"}] for number in range(14)]
    lines = [{"config": {"settings": {"max_tokens": 64, "prompts": 12}, "prompts": [prompts, prompts[:3]]}}]
    for number in range(2):
        for clients, way in BLOCKS:
            scripts = [both.parallel if way == "parallel" else both.sequential for both in SCRIPTS]
            users = Users(clients, 0.0, 0, most=len(scripts))
            run = Cluster(section, SIZES, COSTS, scripts, users).run(len(scripts))
            answers = [{"ttft_s": each.ttft_s, "total_s": each.total_s} for each in run.served]
            lines.append({"key": f"{number} {clients} {way}", "seconds": run.last.now, "answers": answers})
    return lines


def written(tmp_path, lines):
    path = tmp_path / "serve.latency.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def file(tmp_path):
    return written(tmp_path, records())


def test_prompts_and_blocks_are_the_benchmark_s(file):
    load = read_blocks(file)
    assert [prompt[0]["content"] for prompt in load.prompts] == [f"prompt {number}" for number in range(12)]
    assert {(block.clients, block.way) for block in load.blocks} == {*BLOCKS}
    assert all(block.measured.requests_s for block in load.blocks)


def test_what_the_service_takes_is_found_and_every_other_block_predicted(file):
    fit = Fit(study(cores=2), read_blocks(file).blocks)
    found = fit.run()
    constants = {"step_factor": 1.5, "request_s": 0.02, "request_spread": 0.0, "token_s": 0.0015}
    fitted = fit.fitted()
    assert fitted.pop("crowding") <= 1.0  # less does not show here: a request waits for the step in any case
    assert fitted == pytest.approx(constants, rel=1e-3, abs=1e-6)
    assert len(found) == len(BLOCKS) * 6
    assert {each.metric.partition(":")[0] for each in found if each.fitted} == {
        "1 sequential",
        "4 sequential",
    }
    assert all(each.ratio == pytest.approx(1, rel=0.05) for each in found)


def test_requests_that_take_unequal_times_and_longer_in_a_crowd_are_predicted(tmp_path):
    section = replace(SERVICE, request_spread=0.3, crowding=2.0)
    fit = Fit(study(cores=2), read_blocks(written(tmp_path, records(section))).blocks)
    assert [each.metric for each in fit.run() if not each.within] == []
    assert fit.fitted()["request_spread"] > 0.2
    assert fit.fitted()["crowding"] > 1.0


def test_without_shared_cores_one_block_is_fitted_and_what_they_cost_shows(file):
    fit = Fit(study(), read_blocks(file).blocks)
    deviations = fit.run()
    constants = {"step_factor": 1.5, "request_s": 0.02, "request_spread": 0.0}
    assert fit.fitted() == pytest.approx(constants, rel=1e-3, abs=1e-6)
    off = {each.metric.partition(":")[0] for each in deviations if not each.within}
    assert off
    assert "1 sequential" not in off


def test_a_shared_core_slows_a_step_by_all_that_is_asked_of_it():
    scripts = [both.sequential for both in SCRIPTS]

    def last(section):
        users = Users(4, 0.0, 0, most=len(scripts))
        return Cluster(section, SIZES, COSTS, scripts, users).run(len(scripts)).last.now

    own = replace(SERVICE, cores=0, token_s=0.0)
    assert last(replace(own, cores=2)) == pytest.approx(last(own))  # as many cores as replicas
    assert last(replace(own, cores=1)) > 1.5 * last(own)
    assert last(SERVICE) > last(own)


def test_a_file_of_something_else_is_none_of_the_benchmark_s(tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "Drinks?", "ttft_s": 1, "total_s": 2}\n')
    assert read_blocks(other) is None
    assert read_blocks(tmp_path / "none.jsonl") is None


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (lambda lines: lines[:1], "no records yet"),
        (lambda lines: [lines[0], {"key": "0 1"}], "expected the latency"),
    ],
)
def test_a_benchmark_s_file_without_whole_records_is_refused_in_a_line(tmp_path, lines, expected):
    path = tmp_path / "serve.latency.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines(records())))
    with pytest.raises(UserError, match=expected) as caught:
        read_blocks(path)
    assert "\n" not in str(caught.value)


def test_answers_are_those_of_the_prompts_in_their_order():
    traced = [Traced([{"role": "user", "content": name}], drinks(), name) for name in "abc"]
    picked = pick_prompts(traced, [[{"role": "user", "content": name}] for name in "ca"])
    assert [line.key for line in picked] == ["c", "a"]
    with pytest.raises(UserError, match=r"1 of 1 prompts have no answer in trace\.source"):
        pick_prompts(traced, [[{"role": "user", "content": "d"}]])
