"""What an offline W&B run holds, read back from the run file itself."""

import json
import struct
import time
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

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
