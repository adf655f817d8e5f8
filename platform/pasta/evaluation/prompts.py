"""Reads the prompts of a stage: atlas tasks, a user's file, AlpacaEval's file, or another stage's directory."""

import hashlib
import itertools
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pasta.candidates.sample_report import sample_shards
from pasta.data.annotate.finished import check_all_shards
from pasta.data.atlas import heldout_prompts, iter_corpus, task_asked
from pasta.data.atlas_keys import ATLAS
from pasta.data.instructions import instruction_prompt
from pasta.data.prompts import Prompt, PromptsSection
from pasta.errors import UserError
from pasta.evaluation.results.evaluations import read_evaluation
from pasta.files import annotated_files, read_lines
from pasta.rows import asked, messages_of, numbered, placed, read_json, read_rows
from pasta.stages.stage import read_manifest

#: Tasks drawn for each one wanted, before the error that there are not so many distinct ones.
_DRAWS = 50
_ROW = '{"messages": [{"role", "content"}, …]}, a user\'s message last'
_ARRAY = 'a JSON array of objects with "instruction", as AlpacaEval\'s'


@dataclass(frozen=True, slots=True)
class EvalPrompt:
    """A prompt of an evaluation; ``family`` and ``independent`` are the task's if it is one of the atlas."""

    prompt: Prompt
    family: str | None = None
    independent: bool | None = None


def read_prompts(section: PromptsSection) -> list[Prompt]:
    """The distinct prompts of a section, in an order that follows from it alone.

    Raises UserError for a missing, empty or broken source, naming file and line, and if it has fewer than ``count``.
    """
    if section.source == ATLAS:
        assert section.count is not None, "PromptsSection guarantees it"
        tasks = iter_corpus(section.seed, "train", _DRAWS * section.count)
        prompts = list(itertools.islice(_distinct(Prompt(t.messages) for t in tasks), section.count))
        return _enough(prompts, section)
    prompts = list(_distinct(_read_files(Path(section.source))))
    if section.count is not None and section.count < len(prompts):
        prompts = random.Random(f"prompts:{section.seed}").sample(prompts, section.count)
    return _enough(prompts, section)


def digest(prompts: Iterable[Prompt]) -> str:
    """A digest of these prompts, whatever source they come from."""
    return hashlib.sha256(" ".join(prompt.id for prompt in prompts).encode()).hexdigest()[:16]


def read_eval_prompts(section: PromptsSection) -> list[EvalPrompt]:
    """As ``read_prompts``, for an evaluation: of the atlas, held-out tasks with families in proportion. Raises
    UserError."""
    if section.source == ATLAS:
        assert section.count is not None, "PromptsSection guarantees it"
        with placed("prompts.count"):
            tasks = heldout_prompts(section.count, section.seed)
        return [EvalPrompt(Prompt(task.messages), task.family, task.independent) for task in tasks]
    return [_eval_prompt(prompt) for prompt in read_prompts(section)]


def _enough(prompts: list[Prompt], section: PromptsSection) -> list[Prompt]:
    if not prompts:
        raise UserError(f"prompts.source: {section.source}: no prompts in it")
    if section.count is not None and len(prompts) < section.count:
        raise UserError(
            f"prompts.count: {section.count}, but {section.source} has {len(prompts)} distinct prompts"
        )
    return prompts


def _eval_prompt(prompt: Prompt) -> EvalPrompt:
    task = task_asked(prompt.messages)
    return EvalPrompt(prompt) if task is None else EvalPrompt(prompt, task.family, task.independent)


def _distinct(prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id not in seen:
            seen.add(prompt.id)
            yield prompt


def _read_files(source: Path) -> Iterator[Prompt]:
    files = [source]
    if os.path.isdir(source):
        if (manifest := read_manifest(source)) is None:
            raise UserError(f"prompts.source: {source}: holds no finished stage (no manifest.json)")
        if manifest.stage == "evaluate":
            evaluation = read_evaluation(source)
            if gaps := evaluation.lacks():
                raise UserError(f"prompts.source: {source}: {gaps[0]}; expected a whole evaluation")
            yield from (Prompt(record["messages"]) for record in evaluation.answers)
            return
        check_all_shards(source, "prompts.source")
        if manifest.stage == "sample":
            files = sample_shards(source, "prompts.source")
        else:  # an annotate stage keeps its rejects beside the records that are valid
            files = annotated_files(source) or sorted(source.glob("*.jsonl"))
    for file in files:
        lines = read_lines(file, key="prompts.source", expected="atlas, a JSONL file or a stage's directory")
        first = next((line for _, line in numbered(lines)), b"")
        if first.lstrip().startswith(b"["):
            yield from _alpaca_prompts(file)
            continue
        for place, row in read_rows(file, key="prompts.source", row=_ROW):
            with placed(place):
                prompt = Prompt(asked(messages_of(row)))
            yield prompt


def _alpaca_prompts(file: Path) -> Iterator[Prompt]:
    for number, entry in enumerate(read_json(file, expected=_ARRAY), start=1):
        instruction = entry.get("instruction") if isinstance(entry, dict) else None
        if not isinstance(instruction, str) or not instruction.strip():
            raise UserError(f"{file}: entry {number}: expected {_ARRAY}")
        with placed(f"{file}: entry {number}"):
            prompt = Prompt(instruction_prompt(entry))
        yield prompt
