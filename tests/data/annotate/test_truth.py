"""Precision and recall of annotations against the atlas' truth."""

import re

import pytest

from pasta.data.annotate.imperfect import ByLayout, ImperfectSection, guessed
from pasta.data.annotate.truth import TruthTally, marks_line
from pasta.data.atlas import heldout_prompts
from pasta.data.atlas.plan import to_document
from pasta.lang import Chunk, Document, to_text

TASKS = heldout_prompts(60)
NEVER, ALWAYS = (ByLayout(*[chance] * 4) for chance in (0.0, 1.0))


def tally(options: ImperfectSection | None = None) -> TruthTally:
    found = TruthTally()
    for task in TASKS:
        document = task.document if options is None else to_document(guessed(task, task.prompt, options))
        # Another teacher has other words for the topics.
        annotated = re.sub(r'topic="[^"]*"', 'topic="a part"', to_text(document))
        found.add(task.messages, annotated, task.answer)
    return found


def test_the_truth_has_all_and_nothing_else_whatever_its_topics_are_called() -> None:
    assert tally().marks() == {
        "answers": 60,
        "precision": 1.0,
        "recall": 1.0,
        "wrong_forks": 0.0,
        "syncs_right": 1.0,
    }


def test_marked_steps_cost_precision_and_parts_left_alone_recall() -> None:
    forks = tally(ImperfectSection(marks=ALWAYS, forks=ALWAYS, merges=0.0, forgets_syncs=0.0)).marks()
    assert (forks["recall"], forks["wrong_forks"]) == (1.0, 1.0)
    assert forks["precision"] == pytest.approx(0.7, abs=0.25)
    shy = tally(ImperfectSection(marks=NEVER, forks=NEVER)).marks()
    assert (shy["precision"], shy["recall"], shy["syncs_right"]) == (None, 0.0, None)


def test_parts_that_share_a_chunk_are_not_marked() -> None:
    merged = tally(ImperfectSection(marks=ALWAYS, forks=NEVER, merges=1.0, forgets_syncs=0.0)).marks()
    assert merged["recall"] is not None
    assert merged["recall"] < 0.4


def test_entries_of_chapters_that_are_no_chunk_are_marked() -> None:
    task = next(each for each in TASKS if each.family == "encyclopedia")
    document = task.document
    chapters = sum(isinstance(item, Chunk) for item in document.items)
    opened = [
        each for item in document.items for each in (item.items if isinstance(item, Chunk) else (item,))
    ]
    found = TruthTally()
    found.add(task.messages, to_text(Document(tuple(opened))), task.answer)
    assert found.num_right == found.num_marked == found.num_true - chapters > 0


def test_forgotten_syncs_are_wrong_where_something_reads_the_parts() -> None:
    forgetful = tally(ImperfectSection(marks=ALWAYS, forks=NEVER, merges=0.0, forgets_syncs=1.0)).marks()
    assert (forgetful["precision"], forgetful["syncs_right"]) == (1.0, 0.0)


def test_other_answers_have_no_truth() -> None:
    found = TruthTally()
    found.add([{"role": "user", "content": "Who are you?"}], "Nobody.", "Nobody.")
    found.add(TASKS[0].messages, "Something else.", "Something else.")
    assert found.num_answers == 0


def test_shares_that_are_not_known_are_not_named() -> None:
    assert marks_line({"precision": 0.5, "recall": None, "wrong_forks": 0.25, "syncs_right": None}) == (
        "50.0% of the marked parts are independent, 25.0% of the dependent answers fork"
    )
