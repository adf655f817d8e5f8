"""What an evaluation is told is checked in one line; what it is called by is not part of what it measures."""

from dataclasses import replace
from typing import Any

import pytest

from pasta.config import ConfigError, load_config, parse_config
from pasta.engine.section import EngineSection
from pasta.evaluation.config import EvaluateConfig, MethodSection
from tests.support.paths import ROOT

ENDPOINT = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}


def config(**changes: Any) -> EvaluateConfig:
    values: dict[str, Any] = {
        "name": "e",
        "output_dir": "out",
        "prompts": {"source": "atlas", "count": 3},
        "baseline": "twin",
        "methods": {
            "twin": {"kind": "sequential", "model": "m"},
            "pasta": {"kind": "pasta", "model": "p"},
        },
    }
    return parse_config(values | changes, EvaluateConfig, "e.yaml")


def method(**values: Any) -> EvaluateConfig:
    return config(methods={"twin": {"kind": "sequential", "model": "m"}, "other": values})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"baseline": "twn"}, "baseline 'twn': no such method; expected one of twin, pasta"),
        ({"baseline": "pasta"}, "baseline 'pasta': of kind pasta; expected kind sequential or endpoint"),
        ({"methods": {"twin": {"kind": "sequential", "model": "m"}}}, "only the baseline 'twin'"),
        ({"methods": {"a.b": {"kind": "pasta", "model": "m"}}}, "methods.a.b: expected a name of letters"),
        ({"repeats": -1}, "repeats -1: expected 0 (nothing is timed) or more"),
        ({"workers": {"num_workers": 2}}, "num_workers 2: expected 1 with repeats 1; answers that share"),
        ({"prompts": {"source": "atlas"}}, "count: expected the number of atlas prompts"),
        ({"judge": {"kind": "teacher"}}, "teacher: expected a section of this name with kind: teacher"),
    ],
)
def test_a_mistake_is_one_line(changes, expected):
    with pytest.raises(ConfigError) as error:
        config(**changes)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"kind": "psata", "model": "m"}, "methods.other.kind: expected 'sequential', 'pasta'"),
        ({"kind": "pasta"}, "kind pasta: expected a model, and no endpoint"),
        ({"kind": "sequential", "model": "m", "endpoint": ENDPOINT}, "expected a model, and no endpoint"),
        ({"kind": "endpoint", "model": "m"}, "kind endpoint: expected an endpoint"),
        ({"kind": "sot", "model": "m", "endpoint": ENDPOINT}, "kind sot: expected either a model or"),
        ({"kind": "sot"}, "kind sot: expected either a model or an endpoint"),
        ({"kind": "pasta", "model": "m", "sot": {}}, "sot: expected no such section with kind pasta"),
        ({"kind": "sequential", "model": "m", "promise_bias": 2}, "promise_bias 2.0: expected none with"),
        (
            {"kind": "pasta", "model": "m", "promise_bias": float("nan")},
            "promise_bias: expected a finite number, got nan",
        ),
        ({"kind": "pasta", "model": "m", "hint_factor": 0}, "hint_factor 0.0: expected above 0, to 100.0"),
        ({"kind": "sequential", "model": "m", "hint_factor": 2}, "hint_factor 2.0: expected none with kind"),
    ],
)
def test_a_method_is_told_what_its_kind_needs_and_nothing_else(values, expected):
    with pytest.raises(ConfigError) as error:
        method(**values)
    assert expected in str(error.value)


def test_an_evaluation_decodes_in_the_machine_s_fastest_format_unless_it_names_one():
    """It times answers, where a sample is to depend on its seed alone."""
    formats = [config(**more).engine.dtype for more in ({}, {"engine": {"num_slots": 1}})]
    assert formats == ["auto", "auto"]
    assert config(engine={"dtype": "float32"}).engine.dtype == "float32"
    assert EngineSection().dtype == "float32"


def test_several_workers_may_decode_what_is_not_timed():
    assert config(repeats=0, workers={"num_workers": 4}).workers.num_workers == 4


def test_how_a_method_is_drawn_is_not_what_it_is():
    section = MethodSection("pasta", "m", promise_bias=1.0)
    assert replace(section, line="a", label="b").identity() == section.identity()
    assert replace(section, promise_bias=2.0).identity() != section.identity()


def test_records_from_before_estimates_could_be_wrong_stay_good():
    section = MethodSection("pasta", "m")
    assert "hint_factor" not in section.identity()
    assert replace(section, hint_factor=2.0).identity() == section.identity() | {"hint_factor": 2.0}


def test_what_an_endpoint_costs_is_not_what_it_answers():
    (cheap, dear, other) = (
        method(kind="endpoint", endpoint=ENDPOINT | more).methods["other"].identity()
        for more in ({}, {"price_read": 3.0, "retries": 1}, {"model": "n"})
    )
    assert cheap == dear
    assert cheap != other


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs/evaluate").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_shipped_configuration_is_valid(path):
    assert load_config(path, EvaluateConfig).name


def test_the_promise_bias_is_a_line_of_several_points_of_one_model():
    methods = load_config(ROOT / "configs/evaluate/promise-bias.yaml", EvaluateConfig).methods
    points = [section for section in methods.values() if section.kind == "pasta"]
    assert len({point.promise_bias for point in points}) == len(points) >= 7
    assert len({(point.model, point.line) for point in points}) == 1
    assert {-8, 0, 8} <= {point.promise_bias for point in points}
