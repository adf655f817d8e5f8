"""Annotation by APAR's released rules: strict patterns of lists and paragraphs, and no others."""

import pytest

from jobs.annotate import AnnotateConfig
from pasta.config import load_config
from pasta.data.annotate.apar import apar_marks, propose_apar
from pasta.data.annotate.marks import apply_marks
from pasta.data.annotate.validator import Validator
from pasta.data.atlas import heldout_prompts
from pasta.data.instructions import Instruction
from pasta.lang import Document, render
from tests.support.paths import ROOT
from tests.support.tokenizers import codec

LIST = "Three drinks:\n1. Tea: it is made of leaves.\n2. Coffee: it is made of seeds.\n3. Cocoa: it is made of beans."
PARAGRAPHS = "\n\n".join(f"{name} is a drink. It is hot. It is good." for name in ("Tea", "Coffee", "Cocoa"))


def chunks(answer: str) -> list[str]:
    return [render(Document(chunk.items)) for chunk in apply_marks(answer, apar_marks(answer)).chunks()]


def test_a_numbered_list_forks_after_each_title() -> None:
    assert chunks(LIST) == [" it is made of leaves.", " it is made of seeds.", " it is made of beans."]


def test_the_last_item_of_a_list_ends_at_a_blank_line() -> None:
    assert chunks(f"{LIST}\n\nAll are hot.") == chunks(LIST)


def test_paragraphs_fork_after_their_first_sentence() -> None:
    assert chunks(PARAGRAPHS) == ["It is hot. It is good."] * 3


def test_a_paragraph_of_one_sentence_stays_whole_beside_three_that_fork() -> None:
    assert chunks(f"Here are three drinks.\n\n{PARAGRAPHS}") == chunks(PARAGRAPHS)


@pytest.mark.parametrize(
    "answer",
    [
        LIST.replace(":", ","),
        LIST.replace("Tea: it is made of leaves.", "Tea: leaves."),
        LIST.partition("\n3.")[0],
        LIST.replace("1.", "-").replace("2.", "-").replace("3.", "-"),
        PARAGRAPHS.replace("\n\n", "\n"),
        PARAGRAPHS.replace(" It is hot. It is good.", "", 1),
        PARAGRAPHS.replace("Tea", "Dr. Tea"),
        f"{PARAGRAPHS}\n\nSo.",
        PARAGRAPHS + " 1 + 1 = 2.",
        "Tea is a drink.",
    ],
    ids=[
        "no colon",
        "short",
        "two items",
        "bullets",
        "lines",
        "two forks",
        "title",
        "scrap",
        "formula",
        "plain",
    ],
)
def test_nothing_else_forks(answer: str) -> None:
    assert apar_marks(answer) == []


def test_few_answers_of_the_atlas_fork_and_some_of_them_wrongly() -> None:
    tasks = heldout_prompts(300)
    forking = [task for task in tasks if apar_marks(task.answer)]
    assert 0.05 < len(forking) / len(tasks) < 0.25
    assert {task.independent for task in forking} == {True, False}


def test_the_shipped_configuration_keeps_what_the_rules_fork() -> None:
    sections = load_config(ROOT / "configs" / "annotate" / "atlas-apar.yaml", AnnotateConfig).data
    validator = Validator(sections.checks, codec())
    records = [
        Instruction(f"{n}", f"{n}", tuple(task.messages), task.answer)
        for n, task in enumerate(heldout_prompts(60))
        if apar_marks(task.answer)
    ]
    assert len(records) > 2
    for record in records:
        checked = validator.check(propose_apar(record).annotated or "", record.answer)
        assert not checked.repairs
        assert checked.measures.num_threads == 1 + len(apar_marks(record.answer)) // 2
