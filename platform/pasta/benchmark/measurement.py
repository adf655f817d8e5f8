"""The files of a benchmark run: what it reads, the records of each stage, and the JSON of the results."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pasta.benchmark.documents import read_documents
from pasta.benchmark.machine import describe_machine
from pasta.benchmark.metrics import Report
from pasta.benchmark.settings import Settings
from pasta.engine.families import read_model_config
from pasta.engine.head_files import check_heads_beside
from pasta.engine.section import check_here
from pasta.errors import UserError
from pasta.sizes import EngineSettings
from pasta.stages.lock import sole_writer
from pasta.stages.progress import Progress
from pasta.stages.records import Record, RecordFile, write_json

if TYPE_CHECKING:
    import torch

Say = Callable[[str], None]
K = TypeVar("K")


class MeasuredPart(Generic[K]):
    """A part of a measurement with a record for each of ``keys``: says on construction how many ``unit`` there are in
    ``file``, and, as others are added, how far it is. ``title`` is its name for the user."""

    def __init__(self, file: RecordFile, keys: Iterable[K], unit: str, title: str, say: Say) -> None:
        self.file, self._keys = file, [*keys]
        #: The keys that have no record yet.
        self.missing = [key for key in self._keys if str(key) not in file]
        total, found = len(self._keys), len(self._keys) - len(self.missing)
        self._progress = Progress(title, total, unit, found, again=" (--fresh measures again)", say=say)

    def add(self, key: K, record: Record, detail: object = "") -> None:
        """Keep a record on disk, and say how far the part is, with ``detail``."""
        self.file.add(str(key), record)
        self._progress.add(1, detail)

    @property
    def records(self) -> list[Record]:
        """The records in the order of their keys: all of them, once none is missing."""
        return [self.file.records[str(key)] for key in self._keys]


class Measurement:
    """Writes what is measured. Every record is on disk before the next is measured; ``settings.out`` is rewritten
    after each stage. ``settings`` is a dataclass with ``out`` and ``fresh``."""

    def __init__(self, settings: Any, command: str, device: "torch.device | None" = None) -> None:
        #: Record files by stage.
        self.files: dict[str, str] = {}
        self._settings, self._command, self._device = settings, command, device
        self._begun = describe_machine(device)

    def say(self, line: str) -> None:
        """Tell the user how far the run is."""
        print(line, file=sys.stderr, flush=True)

    def alone(self) -> AbstractContextManager[None]:
        """Keep the files to this process for the time of a block, in which alone they are opened and written. Raises
        ``UserError`` if another run has them."""
        busy = "another run is writing its records there; wait for it, or name another"
        return sole_writer(self._settings.out.with_suffix(""), "--out", busy)

    def open(self, stage: str, identity: Mapping[str, Any]) -> RecordFile:
        """Open the records of a stage; ``identity`` is all that they depend on."""
        path = self._settings.out.with_suffix(f".{stage}.jsonl")
        file = RecordFile(path, identity, fresh=self._settings.fresh and stage not in self.files)
        self.files[stage] = path.name
        return file

    def part(
        self, stage: str, identity: Mapping[str, Any], keys: Iterable[K], unit: str, title: str = ""
    ) -> MeasuredPart[K]:
        """``open`` the records of a stage that has one for each of ``keys``."""
        return MeasuredPart(self.open(stage, identity), keys, unit, title or stage, self.say)

    def write(self, report: Report, *, complete: bool, **more: Any) -> None:
        """Write the JSON file: command, machine, settings, ``more``, metrics, tables, and the names of the record
        files."""
        settings = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(self._settings).items()
        }
        write_json(
            self._settings.out,
            {
                "command": self._command,
                "complete": complete,
                "machine": self._begun,
                "load_average_at_end": describe_machine(self._device)["load_average"],
                "settings": settings,
                **more,
                "figures": [metric.to_dict() for metric in report.metrics],
                "tables": report.tables,
                "records": self.files,
            },
        )


def check_models(models: Path) -> None:
    """Raise ``UserError`` unless the directory has the twin and the PASTA model."""
    for name in ("twin", "pasta"):
        if not (models / name / "config.json").is_file():
            raise UserError(
                f"--models {str(models)!r}: no model in {name}/; expected the directories twin and pasta, each with "
                "config.json, model.safetensors and a tokenizer"
            )
        check_heads_beside(models / name, "--models")


def check_inputs(settings: Settings, stages: Sequence[str]) -> None:
    """Check what ``stages`` read before anything is measured or written. Raises ``UserError``."""
    check_here(EngineSettings(), settings.dtype, settings.device, key="--", model_key="--")
    check_models(settings.models)
    if "replay" in stages or ("large" in settings.sizes and {"step", "generate", "calibrate"} & {*stages}):
        read_model_config(settings.model_config)
    if "replay" in stages and settings.documents is not None:
        read_documents(settings.documents)
