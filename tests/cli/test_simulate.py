"""``pasta simulate``: its report and pictures, what it says of mistakes, and what it must not load."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pasta.cli.commands import run
from pasta.config import load_config
from pasta.errors import UserError
from pasta.simulation.config import SimulateConfig
from tests.support.paths import ROOT

ANNOTATED = (
    'Two drinks:<promise topic="tea" tokens="20"/><async> Tea is made of dried leaves and hot water.</async>'
    '<promise topic="coffee" tokens="20"/><async> Coffee is made of roasted beans and hot water.</async><sync/> Done.'
)
ROOF = {
    "memory_bytes": 141e9,
    "memory_bytes_s": 4.8e12,
    "flops_s": 989e12,
    "parameters": 8e9,
    "layers": 32,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
}


@pytest.fixture
def config(tmp_path):
    """A small study of its own: its file, and what it holds."""
    lines = [{"prompt": f"Drinks, {n}?", "annotated": ANNOTATED} for n in range(6)]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    values = {
        "name": "small",
        "output_dir": str(tmp_path / "out"),
        "trace": {"source": str(tmp_path / "trace.jsonl")},
        "costs": {"roofline": ROOF},
        "load": {"kind": "poisson", "rate": 5.0},
        "requests": 60,
        "sweep": {"values": [1.0, 5.0]},
        "sizing": {"goals": {"total_p95_s": 0.12}, "most_replicas": 4},
    }
    path = tmp_path / "simulate.yaml"
    path.write_text(yaml.safe_dump(values))
    return path, values


def simulate(path, *options):
    return run(["simulate", "--config", str(path), *options])


@pytest.mark.slow
def test_what_too_few_requests_cannot_say_is_empty(config, capsys):
    """A thousand answers were said to take 278,000,000,000 GPU hours."""
    path, values = config
    values |= {"load": {"kind": "users", "users": 3, "think_s": 0.0}, "requests": 2, "warmup": 0.0}
    values |= {"sweep": {"values": [3.0, 4.0]}, "cluster": {"gpus_per_replica": 1.0}}
    path.write_text(yaml.safe_dump(values))
    assert simulate(path) == 0
    out = Path(values["output_dir"])
    for point in json.loads((out / "figures.json").read_text())["points"]:
        names = ("requests_s", "plain_tokens_s", "busy", "lanes", "present", "gpu_hours_1000")
        assert {point["figures"][name] for name in names} == {None}
    report = (out / "report.md").read_text()
    cells = next(line.split("|") for line in report.splitlines() if line.startswith("| parallel, local | 3"))
    assert [cell.strip() for cell in cells[8:14]] == ["", "", "", "77%", "", ""]
    assert "of 6 runs are too short for some figures" in report


@pytest.mark.slow
def test_it_writes_a_report_metrics_and_pictures(config, capsys):
    path, values = config
    assert simulate(path) == 0
    out = Path(values["output_dir"])
    report, metrics = (out / "report.md").read_text(), json.loads((out / "figures.json").read_text())
    assert {file.name for file in out.iterdir()} == {"report.md", "figures.json", "loads.png", "sizes.png"}
    assert "**A derived estimate, not a measurement.**" in report
    assert "## How many" in report
    assert "## Where parallel decoding stops paying" in report
    assert len(metrics["points"]) == 4
    assert metrics["estimate"]
    assert metrics["sizes"][0]["series"] == "sequential"
    assert metrics["trace"]["answers"] == 6
    shown = capsys.readouterr()
    assert report.strip() in shown.out
    assert "4/4: parallel, local, 5 requests a second" in shown.err


@pytest.mark.slow
def test_the_same_configuration_gives_the_same_figures(config):
    path, values = config
    simulate(path)
    first = (Path(values["output_dir"]) / "figures.json").read_text()
    simulate(path)
    assert (Path(values["output_dir"]) / "figures.json").read_text() == first


def test_a_measured_load_is_compared_line_by_line(config, tmp_path, capsys):
    path, _ = config
    lines = [
        {"prompt": "Drinks?", "annotated": ANNOTATED, "arrival_s": 0.5 * n, "ttft_s": 0.004, "total_s": 0.1}
        for n in range(20)
    ]
    measured = tmp_path / "measured.jsonl"
    measured.write_text("".join(json.dumps(line) + "\n" for line in lines))
    alone = ["--set", "load={kind: trace}", "--set", "trace.shuffle=false", "--set", "sweep=null"]
    alone += ["--set", "sizing=null", "--measured", str(measured)]
    with pytest.raises(UserError, match="--measured: several runs to compare with"):
        simulate(path, *alone)
    code = simulate(path, *alone, "--set", "modes=[parallel]")
    report = capsys.readouterr().out
    assert "## Against what was measured" in report
    assert "| ttft_s.p50" in report
    assert code == int("**no**" in report)


def test_the_benchmark_s_blocks_are_compared_with_constants_fitted_to_two_of_them(config, tmp_path, capsys):
    path, values = config
    prompts = [[{"role": "user", "content": f"Drinks, {n}?"}] for n in range(6)]
    lines = [{"config": {"settings": {"prompts": 6}, "prompts": [prompts, []]}}]
    for clients, way in ((1, "sequential"), (2, "sequential"), (2, "parallel")):
        answers = [{"ttft_s": 0.02, "total_s": 0.2 * clients}] * 6
        lines.append({"key": f"0 {clients} {way}", "seconds": 1.2, "answers": answers})
    measured = tmp_path / "serve.latency.jsonl"
    measured.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code = simulate(path, "--measured", str(measured), "--set", "cluster.cores=1")
    report, metrics = (
        capsys.readouterr().out,
        json.loads((Path(values["output_dir"]) / "figures.json").read_text()),
    )
    assert code == int(any(not each["within"] for each in metrics["compared"]))
    assert len(metrics["compared"]) == 18
    assert set(metrics["fitted"]) == {"step_factor", "request_s", "request_spread", "token_s", "crowding"}
    assert "| 2 parallel: total_s.p50" in report
    assert "the others are predicted: cluster.step_factor = " in report


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("cluster.token_s=0.1", "token_s 0.1: expected with cores, and only then"),
        ("loda={}", r"unknown key 'loda' \(did you mean 'load'\?\)"),
        ("load.kind=closed", "load.kind: expected 'poisson', 'users' or 'trace', got 'closed'"),
        ("load={kind: users, users: 5}", "think_s: expected with kind users, and only then"),
        ("load.rate=0.0", "rate 0.0: expected a positive number"),
        ("load.rate=1.0e-320", "rate 1e-320: expected at least 1e-06"),
        ("sweep.values=[1.0e-320, 1.0]", "expected rate of at least 1e-06"),
        ("engine.num_slots=100000", "num_slots 100000: with slot_tokens 2048 weights and cache take"),
        ("costs={}", "costs: expected either a file or a roofline"),
        ("costs={file: none.json}", "none.json: no such file; expected a calibration"),
        ("trace.tokenizer=./none", r"^trace\.tokenizer: \./none: "),
        ("trace.source=none.jsonl", "^trace.source: none.jsonl: no such file; expected JSON lines"),
        ("sizing.goals={}", "expected at least one of ttft_p50_s"),
        ("sweep.values=[2, 1]", "expected positive numbers in rising order"),
        ("placements=[]", "expected at least one"),
        ("cluster.replicas=0", "replicas 0: expected a positive integer"),
        ("load={kind: trace}", "expected trace.shuffle: false"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(config, override, expected):
    path, values = config
    with pytest.raises(UserError, match=expected) as caught:
        simulate(path, "--set", override)
    assert "\n" not in str(caught.value)
    assert not Path(values["output_dir"]).exists()


def test_of_one_load_a_report_says_what_it_is_once(config, capsys):
    path, _ = config
    assert simulate(path, "--set", "sweep=null", "--set", "sizing=null") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("- parallel, local")]
    assert " at 5 requests a second, the largest load at which both keep up" in line
    assert "still" not in line


def test_users_who_all_come_at_once_have_a_report_without_answers_a_second(config, capsys):
    changes = ("load={kind: users, users: 80, think_s: 0}", "warmup=0", "sweep=null", "sizing=null")
    assert simulate(config[0], *(word for change in changes for word in ("--set", change))) == 0
    assert "Most answers a second" not in capsys.readouterr().out


def test_a_measured_load_that_is_not_there_is_named_with_its_option(config):
    with pytest.raises(UserError, match=r"^--measured: none\.jsonl: no such file"):
        simulate(config[0], "--measured", "none.jsonl")


def test_neither_torch_nor_ray_is_loaded(config):
    path, _ = config
    code = (
        "import sys\nfrom pasta.cli.commands import run\n"
        f"run(['simulate', '--config', {str(path)!r}, '--set', 'sweep=null', '--set', 'sizing=null'])\n"
        "print(sorted({'torch', 'ray', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("file", sorted((ROOT / "configs" / "simulate").glob("*.yaml")), ids=lambda f: f.stem)
def test_the_shipped_configurations_are_valid(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load_config(file, SimulateConfig)
    config.costs.read()
