"""Offline runs hold what was logged: read back from the run file itself."""

import json
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

from pasta.tracking import Tracker, TrackingSection, start_tracker

BLOCK = 32768
HEADER = 7


def read_run(path: Path) -> list[Any]:
    """The records of a ``.wandb`` file: a 7-byte header, then LevelDB log blocks of 32 KiB."""
    data = path.read_bytes()
    records, parts, at = [], b"", HEADER
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        if kind == 0:
            at += left
            continue
        if at + HEADER + length > len(data):
            break  # still being written
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last of several parts
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            records.append(record)
            parts = b""
    return records


def history(path: Path) -> list[dict[str, Any]]:
    """The logged rows of a run file."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in read_run(path)
        if record.HasField("history")
    ]


def wait_until_written(path: Path) -> None:
    """W&B's own process writes the file, and on a busy machine is not done when ``finish`` returns."""
    deadline = time.monotonic() + 60
    while not any(record.HasField("exit") for record in read_run(path)):
        assert time.monotonic() < deadline, "the run file has no end"
        time.sleep(0.05)


def test_an_offline_run_can_be_read_back(tmp_path: Path) -> None:
    tracker = start_tracker(
        TrackingSection(), run_dir=tmp_path, name="twin", job="sft", config={"lr": 0.5, "nested": {"a": 1}}
    )
    tracker.log({"train/loss": 2.5}, step=1)
    tracker.log({"train/loss": 1.5, "eval/loss": 3.0}, step=2)
    tracker.summary({"final": 7.0})
    tracker.finish()
    (run_file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    wait_until_written(run_file)
    rows = history(run_file)
    assert [row["train/loss"] for row in rows if "train/loss" in row] == [2.5, 1.5]
    assert [row["eval/loss"] for row in rows if "eval/loss" in row] == [3.0]
    runs = [record.run for record in read_run(run_file) if record.HasField("run")]
    assert runs[0].project == "pasta"
    assert runs[0].display_name == "twin"
    assert {item.key for item in runs[0].config.update} >= {"lr", "nested"}


def test_other_ranks_and_disabled_runs_write_nothing(tmp_path: Path) -> None:
    for options, rank in ((TrackingSection(), 1), (TrackingSection(mode="disabled"), 0)):
        tracker = start_tracker(options, run_dir=tmp_path, name="x", job="sft", config={}, rank=rank)
        assert type(tracker) is Tracker
        tracker.log({"a": 1.0}, step=1)
        tracker.finish()
    assert not list(tmp_path.iterdir())


def test_a_run_whose_worker_was_killed_is_taken_up_again(tmp_path: Path) -> None:
    """Also where the parent of both workers has tracked a run itself, as a pipeline and its stages do."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from pasta.tracking import TrackingSection, start_tracker\n"
        "tracker = start_tracker(TrackingSection(), run_dir=Path(sys.argv[1]), name='w', job='sft', config={})\n"
        "tracker.log({'step': float(sys.argv[2])}, step=int(sys.argv[2]))\n"
        "os._exit(9) if sys.argv[2] == '1' else tracker.finish()\n"
    )
    parent = start_tracker(TrackingSection(), run_dir=tmp_path / "parent", name="p", job="x", config={})
    codes = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "worker"), step], timeout=120, check=False
        ).returncode
        for step in ("1", "2")
    ]
    parent.finish()
    assert codes == [9, 0]
