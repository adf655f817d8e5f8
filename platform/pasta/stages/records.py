"""Files of a measurement: records appended one by one, so that an interrupted run goes on where it stopped."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pasta.files import write_whole, writing
from pasta.rows import read_whole_rows

Record = dict[str, Any]


class RecordFile:
    """Records of one stage as JSON lines, by key; the first line holds the configuration they were made with, and
    ``notes`` on it, to which those of earlier runs belong.

    A file of another configuration is set aside (``.old``) when the first record of this one is added; a run that ends
    before that changes nothing. A last line that was cut off by a killed process is dropped. ``fresh`` sets any earlier
    file aside.
    """

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any],
        *,
        fresh: bool = False,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.notes = path, dict(notes or {})
        self.config = json.loads(json.dumps(config))
        self.records: dict[str, Record] = {}
        self._has_replaced = False
        lines = read_whole_rows(path) if os.path.exists(path) else []
        goes_on = bool(lines) and not fresh and lines[0].get("config") == self.config
        if goes_on:
            self.records = {record["key"]: record for record in lines[1:] if "key" in record}
            self.notes = {key: value for key, value in lines[0].items() if key != "config"} | self.notes
        self._is_other = len(lines) > 1 and not goes_on  # an empty one is not worth keeping
        if not self._is_other:
            self._write()

    def compact(self) -> None:
        """Write the file anew if records in it have been replaced by later ones with their keys."""
        if self._has_replaced:
            self._write()

    def _write(self) -> None:
        self._has_replaced = False
        lines = ({"config": self.config, **self.notes}, *self.records.values())
        write_whole(self.path, "".join(map(record_line, lines)))

    def __contains__(self, key: str) -> bool:
        return key in self.records

    def __len__(self) -> int:
        return len(self.records)

    def add(self, key: str, record: Mapping[str, Any]) -> Record:
        """Append a record, which replaces one with its key; it is in the file when this returns. Raises UserError if it
        cannot be written."""
        if self._is_other:
            with writing(self.path):
                os.replace(self.path, self.path.with_suffix(self.path.suffix + ".old"))
            self._write()
            self._is_other = False
        kept: Record = {"key": key, **record}
        with writing(self.path):
            _append(self.path, record_line(kept).encode())
        self._has_replaced |= key in self.records
        self.records[key] = kept
        return kept


def _append(path: Path, line: bytes) -> None:
    """Append ``line``, or nothing if the disk is full: a record that came after half a line could not be read."""
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        left = memoryview(line)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):  # the reason is the one above
                file.truncate(end)
            raise


def write_json(path: Path, value: Any) -> None:
    """``write_whole`` of a value as JSON."""
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def record_line(record: Mapping[str, Any]) -> str:
    """A record as a line of JSON."""
    return json.dumps(record, ensure_ascii=False) + "\n"
