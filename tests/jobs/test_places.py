"""Where a job cannot write, it says so in one line, with the key, before a worker starts."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from jobs import benchmark, pipeline
from pasta.config import load_config
from pasta.errors import UserError
from tests.support.paths import ROOT

JOBS = {
    "annotate": ("annotate/atlas", "data.source.records=10"),
    "evaluate": ("evaluate/atlas", "prompts.count=2"),
    "rl": ("rl/atlas",),
    "sample": ("sample/atlas", "prompts.count=2"),
    "sft": ("sft/atlas-plain",),
}


@pytest.fixture(autouse=True)
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.init", lambda **options: pytest.fail("a worker was started"))
    monkeypatch.chdir(ROOT)


def refused(job: str, *overrides: str) -> str:
    file, *more = JOBS[job]
    module = importlib.import_module(f"jobs.{job}")
    config = load_config(ROOT / "configs" / f"{file}.yaml", module.CONFIG, [*more, *overrides])
    with pytest.raises(UserError) as caught:
        module.run(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("job", JOBS)
def test_an_output_directory_that_cannot_be_made(tmp_path: Path, job: str) -> None:
    (tmp_path / "file").touch()
    for place, reason in (("file/out", "Not a directory"), ("x" * 250, "File name too long")):
        said = refused(job, f"output_dir={tmp_path / place}", f"run_dir={tmp_path / 'runs'}")
        assert said.startswith(f"output_dir: {tmp_path / place}: cannot be written ({reason})")
    assert "exists and is no" in refused(
        job, f"output_dir={tmp_path / 'file'}", f"run_dir={tmp_path / 'runs'}"
    )


@pytest.mark.parametrize("job", JOBS)
def test_a_directory_of_runs_that_cannot_be_made(tmp_path: Path, job: str) -> None:
    (tmp_path / "file").touch()
    said = refused(job, f"output_dir={tmp_path / 'out'}", f"run_dir={tmp_path / 'file'}")
    assert said.startswith(f"run_dir: {tmp_path / 'file'}: cannot be written (Not a directory)")
    said = refused(job, f"output_dir={tmp_path / 'out'}", f"run_dir={tmp_path / 'runs'}", f"name={'x' * 250}")
    assert said.startswith("name: 'xxx")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("job", ["annotate", "sample"])
def test_a_file_system_that_makes_no_directories(job: str) -> None:
    """/proc says that root may write there, and refuses."""
    said = refused(job, "output_dir=/proc/out", "tracking.mode=disabled")
    assert "/proc/" in said
    assert "cannot be written (" in said


def test_verdicts_that_can_be_kept_nowhere(tmp_path: Path) -> None:
    from jobs import score
    from tests.support.samples import sample_stage

    sample_stage(tmp_path / "samples", [])
    (tmp_path / "file").touch()
    places = [f"{key}={tmp_path / name}" for key, name in (("samples", "samples"), ("output_dir", "out"))]
    config = load_config(
        ROOT / "configs" / "score" / "atlas.yaml",
        score.CONFIG,
        [*places, f"judgements_dir={tmp_path / 'file'}"],
    )
    with pytest.raises(UserError, match=r"judgements_dir: .* cannot be written \(Not a directory\)"):
        score.run(config)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"output_dir": "file/out"}, "output_dir: {}/file/out: cannot be written (Not a directory)"),
        ({"output_dir": "out", "stages.annotate.set.run_dir": "file"}, "annotate: run_dir: {}/file: cannot be written"),
    ],
)  # fmt: skip
def test_a_pipeline_finds_out_for_all_its_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any], expected: str
) -> None:
    (tmp_path / "file").touch()
    given = [part for key, name in overrides.items() for part in ("--set", f"{key}={tmp_path / name}")]
    monkeypatch.setattr("sys.argv", ["pipeline", "--config", "configs/pipelines/gemma-7b.yaml", *given])
    with pytest.raises(UserError) as caught:
        pipeline.main()
    assert expected.format(tmp_path) in str(caught.value)


def test_a_benchmark_measures_nothing_that_it_cannot_write_down(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file/in.json", "."):
        with pytest.raises(UserError, match="--out: "):
            benchmark.main(["step", "--out", str(tmp_path / place)])
