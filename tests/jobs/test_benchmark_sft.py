"""The benchmark of training under thread masks runs a recipe as it is, and refuses what it cannot measure."""

import json
from pathlib import Path

import pytest

from jobs.benchmark_sft import main
from pasta.errors import UserError
from pasta.training.mask_cost import PLAIN, THREADS
from tests.support.paths import ROOT

SMALL = (
    "--set",
    "data.documents=40",
    "--set",
    "optimisation.rows=2",
    "--config",
    "configs/sft/atlas-pasta.yaml",
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def _run(tmp_path: Path, *options: str) -> Path:
    out = tmp_path / "sft.json"
    assert main([*SMALL, "--set", f"run_dir={tmp_path}", "--out", str(out), *options]) == 0
    return out


@pytest.mark.slow
def test_every_way_to_train_is_measured_on_the_same_rows(tmp_path: Path) -> None:
    metrics = {f["key"]: f for f in json.loads(_run(tmp_path, "--rounds", "2").read_text())["figures"]}
    assert metrics.keys() == {f"sft.{way}" for way in (THREADS, *PLAIN)} | {
        f"sft.ratio.{way}" for way in PLAIN
    }
    assert all(metric["value"] > 0 for metric in metrics.values())
    assert [metrics[f"sft.ratio.{way}"]["target"] for way in PLAIN].count(0.9) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--rounds", "0"), "--rounds: 0, expected a positive integer"),
        (("--threads", "0"), "--threads: 0, expected a positive integer"),
        (("--rounds", "900"), "--rounds 900: the data has"),
        (("--set", "model.init_from=nowhere"), "model.init_from: nowhere"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, options: tuple[str, ...], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        _run(tmp_path, *options)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
