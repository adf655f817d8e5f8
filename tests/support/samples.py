"""Sample records whose quality and speed are known: variations of the atlas' own answers."""

from pathlib import Path
from typing import Any

from pasta.data.atlas import AtlasTask, heldout_prompts
from pasta.data.prompts import Prompt
from pasta.interpreter import Interpreter, Limits
from pasta.lang import Document, Text, annotated_ids, render, to_text
from pasta.stages.shards import split_into_shards, write_shard
from pasta.stages.stage import StageOutput
from tests.support.tokenizers import codec

CODEC = codec()


def tasks(count: int) -> list[AtlasTask]:
    """Tasks with at least two independent parts."""
    return [task for task in heldout_prompts(120) if sum(1 for _ in task.document.chunks()) > 1][:count]


def candidate(document: Document, finish_reason: str = "stop") -> dict[str, Any]:
    """A candidate as the sampler reports it."""
    ids = annotated_ids(CODEC, document)
    interpreter = Interpreter(CODEC.grammar, Limits(), (), strict=False)
    interpreter.drive(0, ids)
    return {
        "annotated": to_text(document),
        "response_ids": ids,
        "finish_reason": finish_reason,
        "num_tokens": len(ids),
        "text_tokens": len(CODEC.encode_text(render(document))) + 1,
        "critical_path": interpreter.critical_path,
        "num_threads": len(interpreter.threads),
    }


def variations(task: AtlasTask) -> list[dict[str, Any]]:
    """The task's answer without threads and with, one that stops half-way, one cut at the limit, and an empty one."""
    text = task.answer
    return [
        candidate(Document((Text(text),))),
        candidate(task.document),
        candidate(Document((Text(text[: len(text) // 2]),))),
        candidate(task.document, "length"),
        candidate(Document()),
    ]


def record(task: AtlasTask, candidates: list[dict[str, Any]], twin_reason: str = "stop") -> dict[str, Any]:
    """A sample record; the twin's answer is the task's."""
    prompt = Prompt(task.messages)
    twin = {
        "text": render(task.document),
        "num_tokens": len(CODEC.encode_text(task.answer)) + 1,
        "finish_reason": twin_reason,
    }
    return {"id": prompt.id, "messages": prompt.messages, "twin": twin, "candidates": candidates}


def sample_stage(directory: Path, records: list[dict[str, Any]], shard: int = 2) -> Path:
    """A finished sample stage of these records."""
    config = {"records": [entry["id"] for entry in records], "shard_prompts": shard}
    output = StageOutput(directory, "sample", config, {})
    work_dir = output.start()
    for number, part in split_into_shards(records, shard).items():
        write_shard(work_dir, "samples", number, part)
    output.finish({"prompts": len(records)}, "test")
    return directory
