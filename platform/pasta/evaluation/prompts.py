"""The prompts of a stage: tasks of the atlas, a file of one's own, AlpacaEval's, or what another stage left behind."""

import itertools
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasta.data.atlas import heldout_prompts, iter_corpus, task_for_prompt
from pasta.data.prompts import Prompt, PromptsSection
from pasta.errors import UserError
from pasta.stages.stage import read_manifest

ATLAS = "atlas"
#: Tasks drawn for each that is wanted, before it is said that there are not so many distinct ones.
_DRAWS = 50
_EXPECTED = 'expected {"messages": [{"role", "content"}, …]}, a user\'s message last'
_EXPECTED_ARRAY = 'expected a JSON array of objects with "instruction", as AlpacaEval\'s'


@dataclass(frozen=True, slots=True)
class EvalPrompt:
    """A prompt of an evaluation; ``family`` and ``independent`` are the task's if it is one of the atlas."""

    prompt: Prompt
    family: str | None = None
    independent: bool | None = None

    @property
    def id(self) -> str:
        """The prompt's."""
        return self.prompt.id


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


def read_eval_prompts(section: PromptsSection) -> list[EvalPrompt]:
    """The same for an evaluation: of the atlas its held-out tasks, families in proportion. Raises UserError."""
    if section.source == ATLAS:
        assert section.count is not None, "PromptsSection guarantees it"
        try:
            tasks = heldout_prompts(section.count, section.seed)
        except UserError as error:
            raise UserError(f"prompts.count: {error}") from None
        return [EvalPrompt(Prompt(task.messages), task.family, task.independent) for task in tasks]
    return [_eval_prompt(prompt) for prompt in read_prompts(section)]


def source_paths(section: PromptsSection) -> dict[str, str]:
    """What a stage reads for its prompts, for its manifest: empty for the atlas."""
    return {} if section.source == ATLAS else {"prompts.source": str(Path(section.source).absolute())}


def _enough(prompts: list[Prompt], section: PromptsSection) -> list[Prompt]:
    if not prompts:
        raise UserError(f"prompts.source: {section.source}: no prompts in it")
    if section.count is not None and len(prompts) < section.count:
        raise UserError(
            f"prompts.count: {section.count}, but {section.source} has {len(prompts)} distinct prompts"
        )
    return prompts


def _eval_prompt(prompt: Prompt) -> EvalPrompt:
    task = task_for_prompt(prompt.messages[0]["content"]) if len(prompt.messages) == 1 else None
    return EvalPrompt(prompt) if task is None else EvalPrompt(prompt, task.family, task.independent)


def _distinct(prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id not in seen:
            seen.add(prompt.id)
            yield prompt


def _read_files(source: Path) -> Iterator[Prompt]:
    files = [source]
    if source.is_dir():
        if read_manifest(source) is None:
            raise UserError(f"prompts.source: {source}: holds no finished stage (no manifest.json)")
        # An annotate stage keeps its rejects beside the records that are valid.
        files = sorted(source.glob("annotated-*.jsonl")) or sorted(source.glob("*.jsonl"))
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UserError(
                f"prompts.source: {source}: no such file; expected atlas, a JSONL file or a stage's directory"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"prompts.source: {file}: cannot be read as UTF-8 text ({error})") from None
        if text.lstrip().startswith("["):
            yield from _alpaca_prompts(text, str(file))
            continue
        for number, line in enumerate(text.split("\n"), start=1):  # JSON may hold other line separators
            if line.strip():
                yield _prompt(line, f"{file}:{number}")


def _alpaca_prompts(text: str, where: str) -> Iterator[Prompt]:
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error}); {_EXPECTED_ARRAY}") from None
    for number, entry in enumerate(entries, start=1):
        instruction = entry.get("instruction") if isinstance(entry, dict) else None
        if not isinstance(instruction, str) or not instruction.strip():
            raise UserError(f"{where}: entry {number}: {_EXPECTED_ARRAY}")
        yield Prompt([{"role": "user", "content": instruction}])


def _prompt(line: str, where: str) -> Prompt:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error}); {_EXPECTED}") from None
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise UserError(f"{where}: {_EXPECTED}")
    if messages[-1]["role"] != "user":
        raise UserError(f"{where}: the last message is of role {messages[-1]['role']!r}; {_EXPECTED}")
    return Prompt([{"role": m["role"], "content": m["content"]} for m in messages])


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), str)
    )
