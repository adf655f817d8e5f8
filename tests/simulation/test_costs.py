"""Costs between the points that were measured, from a file, and from published metrics."""

import json
import re
from dataclasses import asdict, replace

import pytest

from pasta.errors import UserError
from pasta.simulation.calibration import (
    Calibration,
    MeasuredCosts,
    PrefillPoint,
    StepPoint,
)
from pasta.simulation.config import CostsSection, read_calibration
from pasta.simulation.costs import lane_costs
from pasta.simulation.roofline import RooflineSection

H200 = {"memory_bytes": 141e9, "memory_bytes_s": 4.8e12, "flops_s": 989e12}
LLAMA = {"parameters": 8.03e9, "layers": 32, "heads": 32, "kv_heads": 8, "head_dim": 128}


def points(second=0.002):
    return {
        "steps": tuple(
            StepPoint(requests, lanes, keys, 0.001 * requests + second * lanes + 1e-6 * keys)
            for requests in (1, 4)
            for lanes in (1, 8)
            for keys in (256, 1024)
        ),
        "prefill": tuple(
            PrefillPoint(tokens, tokens + before, 0.001 + 1e-5 * tokens + 1e-6 * before)
            for tokens in (16, 256)
            for before in (0, 1024)
        ),
    }


def calibration(**changes):
    about = {"model": "m", "dtype": "bfloat16", "device": "cpu", "threads": 1}
    return Calibration(**{**about, **points(), **changes})


def test_costs_are_those_measured_at_their_points_and_linear_between_and_beyond():
    costs = MeasuredCosts(calibration())
    assert costs.lanes_s(4, 8, 1024) == pytest.approx(0.004 + 0.016 + 1.024e-3)
    assert costs.lanes_s(2, 3, 512) == pytest.approx(0.002 + 0.006 + 0.512e-3)
    assert costs.lanes_s(8, 16, 2048) == pytest.approx(0.008 + 0.032 + 2.048e-3)
    assert costs.prefill_s(100, 612) == pytest.approx(0.001 + 1e-3 + 0.512e-3)


def test_below_the_first_point_costs_are_the_first_points():
    costs = MeasuredCosts(calibration())
    assert costs.lanes_s(1, 1, 64) == costs.lanes_s(1, 1, 256)
    assert costs.prefill_s(1, 1) == costs.prefill_s(16, 16)


def test_more_work_is_never_extrapolated_to_cost_less():
    costs = MeasuredCosts(calibration(**points(second=-0.00001)))
    assert costs.lanes_s(1, 64, 256) == costs.lanes_s(1, 8, 256)


def test_what_was_calibrated_is_known():
    costs = MeasuredCosts(calibration())
    assert costs.covers(4, 8, 1024)
    assert costs.covers(1, 1, 64)
    assert not costs.covers(5, 1, 64)


def test_steps_together_cost_what_was_measured_of_them():
    assert MeasuredCosts(calibration()).together_s(1, 1, 256) is None
    halves = tuple(replace(point, together_s=point.seconds / 2) for point in points()["steps"])
    costs = MeasuredCosts(calibration(steps=halves))
    assert costs.together_s(2, 3, 512) == pytest.approx(costs.lanes_s(2, 3, 512) / 2)
    with pytest.raises(ValueError, match="together_s in 1 of 8, expected in all or in none"):
        calibration(steps=(halves[0], *points()["steps"][1:]))


def test_a_calibration_survives_its_file(tmp_path):
    made = calibration(machine={"processor": "x"}, overhead_s=0.0001)
    (tmp_path / "c.json").write_text(json.dumps(asdict(made)))
    assert read_calibration(tmp_path / "c.json") == made


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"stepps": []}, r"unknown key 'stepps' \(did you mean 'steps'\?\)"),
        ({"steps": []}, "steps: none is given"),
        ({"overhead_s": "1"}, "overhead_s: expected a valid number, got '1'"),
        ({"overhead_s": -1.0}, "overhead_s -1.0: expected 0 or more"),
        (
            {"steps": [{"requests": 1, "lanes": 0, "cache_tokens": 1, "seconds": 1.0}]},
            "lanes 0: expected a positive integer",
        ),
        (
            {"steps": [{"requests": 1, "lanes": 1, "cache_tokens": 1, "seconds": 1e30}]},
            r"seconds 1e\+30: expected a number from 1e-09 to 1e\+06",
        ),
        ({"overhead_s": 1e30}, r"overhead_s 1e\+30: expected at most 1,000,000"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, change, expected):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**asdict(calibration()), **change}))
    with pytest.raises(UserError, match=expected) as caught:
        read_calibration(path)
    assert "\n" not in str(caught.value)


def test_missing_and_doubled_points_are_refused():
    steps = points()["steps"]
    with pytest.raises(ValueError, match=r"steps: no point at \(4, 8, 1024\)"):
        calibration(steps=steps[:-1])
    with pytest.raises(ValueError, match="steps: 1 points are given twice"):
        calibration(steps=(*steps, steps[0]))


def test_no_file_says_how_to_make_one(tmp_path):
    with pytest.raises(UserError, match=r"no such file; expected a calibration .*jobs.benchmark calibrate"):
        read_calibration(tmp_path / "none.json")


def test_the_key_of_a_file_that_is_no_calibration_is_named(tmp_path):
    with pytest.raises(UserError, match=rf"^costs\.file: {re.escape(str(tmp_path))}: cannot be read"):
        CostsSection(file=tmp_path).read()


def test_the_roofline_is_the_weights_read_until_arithmetic_takes_longer():
    roof = RooflineSection(**H200, **LLAMA)
    assert roof.lanes_s(1, 1, 64) == pytest.approx(2 * 8.03e9 / 4.8e12, rel=0.01)
    # 64 rows ride along; 1,000 are bound by arithmetic.
    assert roof.lanes_s(8, 8, 64) == pytest.approx(roof.lanes_s(8, 1, 64))
    assert roof.lanes_s(1, 1000, 64) > 1000 * 2 * 8.03e9 / 989e12
    half = RooflineSection(**H200, **LLAMA, bandwidth_efficiency=0.5, overhead_s=0.001)
    assert half.lanes_s(1, 1, 64) == pytest.approx(2 * roof.lanes_s(1, 1, 64) + 0.001)


def test_each_request_reads_its_own_cache():
    roof = RooflineSection(**H200, **LLAMA)
    cache = roof.lanes_s(100, 1, 2048) - roof.lanes_s(1, 1, 0)
    assert cache == pytest.approx(100 * 2048 * 131_072 / 4.8e12)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"layers": 0}, "layers 0: expected a positive integer"),
        ({"compute_efficiency": 1.5}, "compute_efficiency 1.5: expected a share of 1"),
        ({"overhead_s": -1.0}, "overhead_s -1.0: expected 0 or more"),
        ({"overhead_s": 1e30}, "overhead_s 1e\\+30: expected at most 1,000,000"),
        (
            {"memory_bytes_s": 1e-30},
            r"memory_bytes_s 1e-30: with .* a step takes 1.6\S+e\+40 s; expected from 1e-09 to 1,000,000 s",
        ),
        ({"flops_s": 1e-300}, "flops_s 1e-300: with 8.03e"),
        ({"compute_efficiency": 1e-300}, "compute_efficiency 1e-300: expected at least 1e-06"),
        ({"memory_bytes_s": 1e300, "flops_s": 1e300}, "flops_s 1e\\+300: with .* a step takes"),
        ({"parameters": 1e300}, "memory_bytes_s 4.8e\\+12: with 1e\\+300 parameters a step takes"),
    ],
)
def test_a_roofline_of_nonsense_is_refused(change, expected):
    with pytest.raises(ValueError, match=expected):
        RooflineSection(**{**H200, **LLAMA, **change})


def test_a_cache_that_does_not_fit_is_refused():
    roof = RooflineSection(**H200, **LLAMA)
    roof.check_memory(256, 2048)
    with pytest.raises(ValueError, match=r"num_slots 512: .* take 157 GB, but the device has 141 GB"):
        roof.check_memory(512, 2100)


def test_placement_knows_the_knee_and_the_price_of_a_lane():
    costs = lane_costs(MeasuredCosts(calibration()), prefill_chunk=256)
    # 1 lane 3.256 ms, 2 lanes 5.256, 4 lanes 9.256, 8 lanes 17.256.
    assert costs.knee == 1
    assert costs.lane_s == pytest.approx(0.002)
    assert costs.prefill_s == pytest.approx((0.001 + 2.56e-3) / 256)
