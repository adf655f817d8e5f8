"""Values that cannot be meant, in the shipped configurations: refused in one line as they are read."""

import importlib

import pytest

from pasta.config import ConfigError, load_config
from tests.support.paths import ROOT

TEACHER = "annotate/atlas-teacher"


def refusal(config: str, *overrides: str) -> str:
    """What is said of a shipped configuration with these keys set."""
    path = ROOT / "configs" / f"{config}.yaml"
    job = importlib.import_module(f"jobs.{path.parent.name}")
    load_config(path, job.CONFIG)
    with pytest.raises(ConfigError) as caught:
        load_config(path, job.CONFIG, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "override", "expected"),
    [
        (TEACHER, "data.teacher.temperature=-1", "data.teacher: temperature -1.0: expected a number from 0 to 2"),
        (TEACHER, "data.teacher.temperature=1e9", "temperature 1000000000.0: expected a number from 0 to 2"),
        (TEACHER, "data.teacher.endpoint.model=''", "data.teacher.endpoint.model: expected one line of text, got ''"),
        (TEACHER, "data.teacher.endpoint.api_key_env=A B", "api_key_env: expected the name of an environment variable"),
        ("score/teacher", "judge.teacher.temperature=2.5", "judge.teacher: temperature 2.5: expected a number from 0"),
        ("score/reward", "judge.reward.device=gpu", "judge.reward: device: 'gpu', expected auto, cpu, cuda or cuda:N"),
        ("score/reward", "judge.reward.max_length=0", "judge.reward: max_length 0: expected a positive integer"),
        ("sample/atlas", "engine.device='cuda:'", "engine: device: 'cuda:', expected auto, cpu, cuda or cuda:N"),
        ("sample/atlas", "tracking.project=a/b", "tracking: project 'a/b': expected a name without '/'"),
        ("sample/atlas", f"tracking.project={'a' * 129}", "aaa…': expected at most 128 characters"),
        ("annotate/atlas", "data.source.split=test", "data.source: split 'test': expected one of train, heldout"),
        ("annotate/alpaca-syntactic", "data.syntactic.min_items=0", "data.syntactic: min_items 0: expected a positive"),
        ("annotate/alpaca-syntactic", "data.syntactic.max_depth=-1", "max_depth -1: expected a positive integer"),
        ("annotate/atlas", "data.checks.min_speedup=-1", "data.checks: min_speedup -1.0: expected 0 or more"),
        ("sft/qwen3-8b-lora", "lora.targets=[]", "lora: targets []: expected all-linear, or the names of"),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_named(config, override, expected):
    assert expected in refusal(config, override)
