"""The baseline that forks by layout: chunks that see their path alone, and nothing that ever sees a chunk."""

import functools

import pytest

from jobs.annotate import AnnotateConfig
from pasta.config import load_config
from pasta.data.annotate.syntactic import annotate_text
from pasta.data.annotate.validator import Validator
from pasta.data.atlas import AtlasTask, heldout_prompts
from pasta.interpreter import linearise
from pasta.lang import Chunk, Document, Sync, to_text
from tests.support.paths import ROOT
from tests.support.tokenizers import codec

SECTIONS = load_config(ROOT / "configs" / "annotate" / "atlas-layout.yaml", AnnotateConfig).data
C = codec()
PROMPT = [5, 6, 7]


def forked(task: AtlasTask) -> Document:
    annotated = to_text(annotate_text(task.answer, SECTIONS.syntactic))
    return Validator(SECTIONS.checks, C).check(annotated, task.answer).document


@functools.cache
def documents() -> list[Document]:
    """Those that fork. Not made while tests are collected, which every worker does."""
    return [document for task in heldout_prompts(60) if len([*(document := forked(task)).chunks()]) > 1]


def test_lists_and_paragraphs_fork_whatever_they_say() -> None:
    tasks = [task for task in heldout_prompts(60) if task.spec["layout"] in ("bullets", "numbered")]
    forking = [task for task in tasks if any(forked(task).chunks())]
    assert {task.independent for task in forking} == {True, False}
    assert len(forking) > 0.9 * len(tasks)


def test_nothing_waits_and_no_fork_costs_more_than_it_must() -> None:
    assert documents()
    for document in documents():
        assert Sync() not in document.items
        for chunk in document.chunks():
            assert len(chunk.topic) == 1
            assert not any(isinstance(item, Chunk) for item in chunk.items)


@pytest.mark.parametrize("number", range(10))
def test_a_chunk_sees_its_path_alone_and_nothing_else_sees_it(number: int) -> None:
    document = documents()[number]
    rows = linearise(C.grammar, PROMPT, [*C.encode(document), C.eos_id])
    opened = [i for i, token in enumerate(rows.token_ids) if token == C.control.async_open]
    closed = [i for i, token in enumerate(rows.token_ids) if token == C.control.async_close]
    chunks = [range(a, b + 1) for a, b in zip(opened, closed, strict=True)]
    inside = {row: number for number, chunk in enumerate(chunks) for row in chunk}
    for q in range(len(rows.token_ids)):
        seen = [k for k in range(q + 1) if rows.sees[rows.segments[q]] >> rows.segments[k] & 1]
        own = inside.get(q)
        assert seen == [k for k in range(q + 1) if k not in inside or inside[k] == own]
