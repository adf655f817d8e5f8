"""Keeps what evaluations with another judge, or other methods, have left in the same place.

An answer depends on its method and on how all are decoded, not on the judge; a verdict on the answers of its prompt,
the baseline and the judge. Answers that are timed belong to those of the other methods, which took turns with it
(``methods/decode.py``): methods may be dropped from them, not added.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.evaluation.results.evaluations import ANSWERS, VERDICTS, Evaluation, read_evaluation
from pasta.files import read_bytes, write_whole, writing
from pasta.judges.make import JOURNAL
from pasta.judges.tally import USAGE
from pasta.stages.machines import Machines, read_machines
from pasta.stages.records import Record, RecordFile
from pasta.stages.stage import StageOutput

#: The keys of a configuration on which no method's answers depend. What prompts there are, their ids say.
_NOT_DECODING = ("methods", "baseline", "judge", "prompts")
_REWARD = "judge.reward.model"


class EvaluationOutput(StageOutput):
    """An evaluation on disk, which keeps answers and verdicts of earlier ones for the same directory."""

    def __init__(self, *given: Any, restart: bool = False, rejudge: bool = False, **options: Any) -> None:
        """``rejudge`` forgets the verdicts and keeps the answers, finished or not."""
        super().__init__(*given, restart=restart, **options)
        self._forgets, self._rejudges = restart, rejudge
        #: What a finished one has lost since, in words: this run makes that alone.
        self.lost: list[str] = []
        if self.is_done and not rejudge:
            if not (self.output_dir / ANSWERS).is_file():
                self.lost = ["the answers to all prompts are gone"]
            with suppress(UserError):
                self.lost = read_evaluation(self.output_dir).lacks(verdicts=True)
        if rejudge or self.lost:
            self.restarts, self._replaces = rejudge, self.is_done
            self.manifest = None

    def start(self) -> Path:
        """``StageOutput.start``; with ``rejudge`` of what this evaluation has left only the verdicts are deleted."""
        if self._rejudges:
            self.restarts = False
            for file in (VERDICTS, USAGE, JOURNAL):
                (self.work_dir / file).unlink(missing_ok=True)
        work_dir = super().start()
        self.restarts |= self._rejudges
        return work_dir

    def replace(self) -> None:
        """``StageOutput.replace``; with ``restart`` the answers of others are set aside (``.old``) that this evaluation
        would keep: they are of before, and would come back with another judge."""
        for directory in self.unfinished_others() if self._forgets else ():
            if self.reuses(directory):
                for name in (ANSWERS, VERDICTS):
                    with writing(directory / name), suppress(FileNotFoundError):
                        os.replace(directory / name, directory / f"{name}.old")
        self._forgets = False
        super().replace()

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each input by name."""
        return {name: value["fingerprint"] for name, value in self.inputs.items()}

    def reuses(self, directory: Path) -> bool:
        """Whether answers in ``directory`` hold for this evaluation."""
        return self._found(directory) is not None

    def keep(self, name: str, answers: RecordFile, verdicts: RecordFile) -> None:
        """Add what others have that holds for this one; says after ``name`` where it is from, and where a finished one
        goes whose place this one will take."""
        for directory in self._others():
            if (found := self._found(directory)) is None:
                continue
            count = self._keep_answers(name, found, answers)
            if not self._rejudges:
                self._keep_verdicts(found, answers, verdicts)
            if count:
                print(
                    f"{name}: keeps answers to {count} prompts of the evaluation in {directory}", flush=True
                )
        if self.set_aside is not None:
            when = f"goes to {self.set_aside} when this one is finished"
            print(f"{name}: the evaluation in {self.output_dir} {when}", flush=True)

    def is_decoded(self, keys: Iterable[str]) -> bool:
        """Whether these prompts have all answers, here and in what this evaluation would keep."""
        answered: dict[str, set[str]] = {}
        for directory in () if self._forgets else (self.work_dir, *self._others()):
            if (found := self._found(directory)) is not None:
                same = self.same_methods(found)
                for record in found.answers:
                    answered.setdefault(record["key"], set()).update(_of(record, same))
        return all(self.config["methods"].keys() <= answered.get(key, set()) for key in keys)

    def _others(self) -> list[Path]:
        """Where earlier evaluations for the same directory are, first the finished one whose place this one takes."""
        takes_place = self.earlier is not None or self._rejudges or self.lost
        return [*([self.output_dir] if takes_place else []), *self.unfinished_others()]

    def add(self, answers: RecordFile, key: str, record: Record) -> Record:
        """Add the answers in a prompt's record to those that are there; returns the record of them all."""
        found = answers.records.get(key, {"answers": {}})
        both = {"answers": found["answers"] | record["answers"]}
        return answers.add(key, {**record, "answers": _of(both, self.config["methods"])})

    def missing(self, record: Record | None) -> list[str]:
        """The methods without an answer in the record of a prompt."""
        return [name for name in self.config["methods"] if record is None or name not in record["answers"]]

    def _found(self, directory: Path) -> Evaluation | None:
        """The evaluation in ``directory``; None without one that has answers which hold for this one."""
        with suppress(UserError):
            found = read_evaluation(directory)
            return found if self.same_methods(found) else None
        return None

    def same_methods(self, found: Evaluation) -> list[str]:
        """The methods whose answers in another evaluation hold for this one."""
        ours, theirs = self.named_as(found.config)["methods"], found.config.get("methods", {})
        if _decoding(found.config) != _decoding(self.config):
            return []
        same = [name for name in ours if theirs.get(name) == ours[name]]
        same = [name for name in same if _read_by(name, found.inputs) == _read_by(name, self.fingerprints)]
        return same if len(same) == len(ours) or not self.config["repeats"] else []

    def is_same_judge(self, found: Evaluation) -> bool:
        """Whether verdicts of another evaluation on equal answers hold for this one."""
        ours = self.named_as(found.config)
        same = all(found.config.get(key) == ours[key] for key in ("judge", "baseline"))
        return same and found.inputs.get(_REWARD) == self.fingerprints.get(_REWARD)

    def _keep_answers(self, name: str, found: Evaluation, answers: RecordFile) -> int:
        count, same = 0, self.same_methods(found)
        for record in found.answers:
            missing = self.missing(answers.records.get(record["key"]))
            if new := _of(record, [name for name in same if name in missing]):
                count += 1
                self.add(answers, record["key"], {**record, "answers": new})
        if count:
            directory = answers.path.parent
            machines = Machines(name, directory, read_machines(directory))
            for machine in read_machines(found.directory):
                formats = machine.get("formats", {})
                machines.add({**machine, "formats": {key: formats[key] for key in same if key in formats}})
        return count

    def _keep_verdicts(self, found: Evaluation, answers: RecordFile, verdicts: RecordFile) -> None:
        if not self.is_same_judge(found):
            return
        # Before the verdicts: what they have cost, then the replies, of which some are no verdicts yet.
        for file in (USAGE, JOURNAL):
            theirs, copy = found.directory / file, verdicts.path.parent / file
            if theirs.is_file() and not copy.exists():
                write_whole(copy, read_bytes(theirs))
        methods = self.config["methods"]
        judged = {record["key"]: _of(record, methods) for record in found.answers}
        for record in found.verdicts:
            key, ours = record["key"], answers.records.get(record["key"])
            is_same = ours is not None and not self.missing(ours) and ours["answers"] == judged.get(key)
            if is_same and key not in verdicts:
                said = record["verdicts"]
                verdicts.add(key, {"verdicts": {name: said[name] for name in methods if name in said}})


def _decoding(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _NOT_DECODING}


def _read_by(name: str, inputs: Mapping[str, str]) -> dict[str, str]:
    """The fingerprints of what a method reads: its model, and the draft heads beside it."""
    own = f"methods.{name}.model"
    return {key: value for key, value in inputs.items() if key == own or key.startswith(f"{own}/")}


def _of(record: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """The answers of a record by these methods, in their order."""
    return {name: record["answers"][name] for name in names if name in record["answers"]}
