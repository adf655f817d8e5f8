"""Evaluations on disk, as jobs.evaluate leaves them, without decoding anything."""

import json
from pathlib import Path
from typing import Any


def answer(text: str = "Tea is hot.", **values: Any) -> dict[str, Any]:
    """One method's answer: 100 tokens on a critical path of as many, timed once at one second."""
    return {
        "text": text,
        "annotated": text,
        "tokens": 100,
        "budget": {"text": 100},
        "critical_path": 100,
        "steps": 100,
        "threads": [{"start": 0, "end": 100, "waits": [], "parent": None, "topic": None}],
        "ttft_s": 0.01,
        "seconds": [1.0],
        "finish_reason": "stop",
        "fallback": None,
        **values,
    }


def prompt(key: str, answers: dict[str, Any], text: str | None = None, **values: Any) -> dict[str, Any]:
    """One record of answers."""
    messages = [{"role": "user", "content": text or f"Tell me about {key}."}]
    return {
        "key": key,
        "messages": messages,
        "family": None,
        "independent": None,
        "answers": answers,
        **values,
    }


def write_evaluation(
    directory: Path,
    answers: list[dict[str, Any]],
    qualities: dict[str, dict[str, Any]] | None = None,
    *,
    finished: bool = True,
    inputs: dict[str, str] | None = None,
    code_version: str = "abc",
    **config: Any,
) -> Path:
    """``qualities`` are by prompt and method; further values are the configuration's."""
    methods = {name: {"kind": "pasta"} for record in answers for name in record["answers"]}
    values = {"baseline": "twin", "methods": methods, "repeats": 1, **config}
    directory.mkdir(parents=True)
    _write(directory / "answers.jsonl", values, answers)
    if qualities is not None:
        judged = [
            {"key": key, "verdicts": {name: {"quality": quality} for name, quality in by_method.items()}}
            for key, by_method in qualities.items()
        ]
        _write(directory / "verdicts.jsonl", values, judged)
    if finished:
        read = {name: {"path": name, "fingerprint": value} for name, value in (inputs or {}).items()}
        manifest = {"stage": "evaluate", "config": values, "inputs": read, "code_version": code_version}
        manifest["figures"] = {"prompts": len(answers)}
        (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def cut_short(directory: Path, name: str) -> None:
    """Take the last line from a file of an evaluation, as a copy that was cut does."""
    lines = (directory / name).read_text().splitlines(keepends=True)
    (directory / name).write_text("".join(lines[:-1]))


def _write(path: Path, config: dict[str, Any], records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in ({"config": config}, *records)))
