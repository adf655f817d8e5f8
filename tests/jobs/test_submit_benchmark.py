"""A benchmark that is sent to a cluster: its values are checked here, and its paths are moved to shared storage."""

import shlex

import pytest

from jobs.submission import prepare_submission
from pasta.errors import UserError
from tests.support.paths import ROOT

GPU = ROOT / "configs/serve/gpu.yaml"


def sent(*arguments: str, storage: str | None = "/mnt/pasta") -> list[str]:
    """What the cluster's shell will run, after ``python -m jobs.benchmark``."""
    words = shlex.split(prepare_submission("benchmark", arguments, storage=storage, environ={}).entrypoint)
    assert words[:3] == ["python", "-m", "jobs.benchmark"]
    return words[3:]


def test_it_writes_to_storage():
    out = "/mnt/pasta/runs/benchmark/speed.json"
    assert sent("speed", "--prompts", "20") == ["speed", "--prompts", "20", "--out", out]


def test_a_part_with_its_own_options_writes_to_storage():
    assert sent("serve") == ["serve", "--out", "/mnt/pasta/runs/benchmark/serve.json"]


def test_a_part_is_sent_with_its_own_options():
    out = "/mnt/pasta/runs/benchmark"
    command = ["serve", "--soak", "20", "--timeout", "60"]
    assert sent(*command) == [*command, "--out", f"{out}/serve-soak.json"]
    assert sent("people", "--split", "dev-2", "--models", "runs/models") == [
        *("people", "--split", "dev-2", "--models", "/mnt/pasta/runs/models"),
        *("--out", f"{out}/people-dev-2.json"),
    ]
    assert sent("peers", "--parts", "check,decode", "--out", "runs/p.json")[-1] == "/mnt/pasta/runs/p.json"
    with pytest.raises(UserError, match=r"^--prompts: 'runs/mine\.jsonl' is not sent"):
        sent("people", "--prompts", "runs/mine.jsonl", "--out", "/mnt/x.json", storage=None)


def test_a_part_that_has_a_configuration_is_sent_with_it():
    submission = prepare_submission(
        "benchmark", ["front", "--rounds", "2"], config=GPU, storage="/mnt/pasta", environ={}
    )
    assert shlex.split(submission.entrypoint)[3:] == [
        *("front", "--config", "configs/serve/gpu.yaml", "--rounds", "2"),
        *("--out", "/mnt/pasta/runs/benchmark/front.json"),
    ]


def test_a_configuration_that_is_not_sent_or_not_read_is_refused(tmp_path):
    for part, config, says in (
        ("serve", ROOT / "tests/conftest.py", "--config: 'tests/conftest.py' is not sent to the cluster"),
        ("people", GPU, "--config: people has none; python -m jobs.benchmark people --help lists"),
        ("speed", GPU, "--config: the benchmark has none; python -m jobs.benchmark --help lists"),
    ):
        with pytest.raises(UserError) as caught:
            prepare_submission("benchmark", [part], config=config, storage="/mnt/pasta", environ={})
        assert str(caught.value).startswith(says)


def test_without_storage_its_output_would_be_deleted():
    with pytest.raises(UserError, match=r"^--out runs/benchmark/speed\.json: would be deleted"):
        sent("speed", storage=None)


def test_its_inputs_below_runs_are_read_from_storage():
    out = "/mnt/pasta/runs/benchmark/replay.json"
    moved = ["--documents", "/mnt/pasta/runs/data/x"]
    assert sent("replay", "--documents", "runs/data/x") == ["replay", *moved, "--out", out]
    assert sent("replay", "--documents=./runs/data/x", "--out=runs/a.json") == [
        "replay",
        "--documents=/mnt/pasta/runs/data/x",
        "--out=/mnt/pasta/runs/a.json",
    ]


def test_paths_with_commas_between_them_are_moved_and_checked_one_by_one():
    shapes = "configs/models/wide-400m.json,runs/a.json,shipped,runs/b.json"
    out = ["--out", "/mnt/pasta/runs/benchmark/peers.json"]
    moved = "configs/models/wide-400m.json,/mnt/pasta/runs/a.json,shipped,/mnt/pasta/runs/b.json"
    assert sent("peers", "--shapes", shapes) == ["peers", "--shapes", moved, *out]
    with pytest.raises(UserError, match=r"^--shapes\.1: 'runs/a\.json' is not sent to the cluster"):
        sent("peers", "--shapes", shapes, "--out", "/mnt/x.json", storage=None)


def test_it_is_not_given_what_is_not_sent():
    with pytest.raises(UserError, match=r"^--documents: 'runs/data/x\.jsonl' is not sent"):
        sent("replay", "--out", "/mnt/x.json", "--documents", "runs/data/x.jsonl", storage=None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("step", "--lanes", "0"), "--lanes: 0, expected positive integers"),
        (("speed", "--prompts", "0"), "--prompts: 0, expected at least 2"),
        (("--fresh", "people"), "people: expected before all options"),
    ],
)
def test_a_mistake_is_found_before_anything_is_sent(arguments, expected):
    with pytest.raises(UserError, match=f"^{expected}"):
        sent(*arguments)
