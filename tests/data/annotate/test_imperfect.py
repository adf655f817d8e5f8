"""The imperfect teacher errs by layout, by answer, and the same way each time."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from jobs.annotate import AnnotateConfig
from pasta.config import ConfigError, load_config
from pasta.data.annotate.annotator import Proposal
from pasta.data.annotate.imperfect import ByLayout, ImperfectSection, guessed, propose_imperfect
from pasta.data.annotate.validator import Validator
from pasta.data.atlas import AtlasTask, heldout_prompts
from pasta.data.atlas.plan import to_document
from pasta.data.instructions import Instruction
from pasta.lang import Document, Sync, render, to_text
from tests.support.paths import ROOT
from tests.support.tokenizers import codec

CONFIG = ROOT / "configs" / "annotate" / "atlas-imperfect.yaml"
NEVER, ALWAYS = (ByLayout(*[chance] * 4) for chance in (0.0, 1.0))
MARKS_ALL = ImperfectSection(marks=ALWAYS, forks=ALWAYS, merges=0.0, forgets_syncs=0.0)


@cache
def tasks() -> list[AtlasTask]:
    return heldout_prompts(120)


def independent() -> Iterator[AtlasTask]:
    return (task for task in tasks() if task.independent)


def dependent() -> Iterator[AtlasTask]:
    return (task for task in tasks() if not task.independent)


def document(task: AtlasTask, options: ImperfectSection, record: str = "a") -> Document:
    return to_document(guessed(task, record, options))


def proposals(records: list[Instruction], options: ImperfectSection) -> list[Proposal]:
    return [propose_imperfect(record, options) for record in records]


def record(task: AtlasTask, name: str = "a") -> Instruction:
    return Instruction(name, name, tuple(task.messages), task.answer)


def share_marked(layouts: set[str], is_independent: bool, options: ImperfectSection) -> float:
    drawn = [task for task in tasks() if task.independent is is_independent]
    drawn = [task for task in drawn if task.spec["layout"] in layouts][:5]
    marked = [any(document(task, options, f"{n}").chunks()) for task in drawn for n in range(100)]
    return sum(marked) / len(marked)


@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_every_guess_leaves_the_answer_as_it_is(name: str) -> None:
    for task in tasks():
        assert render(document(task, ImperfectSection(), name)) == task.answer


def test_the_same_seed_and_record_give_the_same_guess() -> None:
    records = [record(task, f"{n}") for n, task in enumerate(tasks()[:30])]
    whole = proposals(records, ImperfectSection())
    assert proposals(records[7:9], ImperfectSection()) == whole[7:9]
    assert proposals(records, ImperfectSection(seed=1)) != whole


@pytest.mark.parametrize(
    ("layouts", "marks", "forks"),
    [({"bullets", "numbered"}, 0.80, 0.60), ({"paragraphs"}, 0.45, 0.40), ({"inline"}, 0.25, 0.15)],
)
def test_the_layout_decides_how_often_parts_are_marked(layouts: set[str], marks: float, forks: float) -> None:
    assert share_marked(layouts, True, ImperfectSection()) == pytest.approx(marks, abs=0.07)
    assert share_marked(layouts, False, ImperfectSection()) == pytest.approx(forks, abs=0.07)


def test_independent_tasks_without_a_layout_of_their_own_have_a_probability_of_their_own() -> None:
    assert share_marked({""}, True, ImperfectSection()) == pytest.approx(0.35, abs=0.07)


def test_a_teacher_who_errs_nowhere_gives_the_truth() -> None:
    perfect = replace(MARKS_ALL, forks=NEVER)
    assert all(document(task, perfect) == task.document for task in tasks())


def test_dependent_steps_are_forked_one_by_one_and_joined_before_the_last_statement() -> None:
    for task in dependent():
        items = document(task, MARKS_ALL).items
        assert len([*document(task, MARKS_ALL).chunks()]) >= 3
        assert items.count(Sync()) == 1
        assert items.index(Sync()) == len(items) - 2


def test_merged_neighbours_halve_the_parts_of_an_answer() -> None:
    for task in dependent():
        apart, merged = (document(task, replace(MARKS_ALL, merges=share)) for share in (0.0, 1.0))
        parts = len([*apart.chunks()])
        assert next(chunk.topic for chunk in merged.chunks()) == "step 1 and step 2"
        assert len([*merged.chunks()]) == (parts + 1) // 2


def test_forgotten_syncs_are_forgotten_at_every_depth() -> None:
    forgetful = replace(MARKS_ALL, forgets_syncs=1.0)
    assert any("<sync/>" in to_text(document(task, MARKS_ALL)) for task in independent())
    assert not any("<sync/>" in to_text(document(task, forgetful)) for task in tasks())


def test_the_shipped_configuration_keeps_every_error_through_the_checks() -> None:
    sections = load_config(CONFIG, AnnotateConfig).data
    validator = Validator(sections.checks, codec())
    for task in tasks()[:40]:
        (proposal,) = proposals([record(task)], sections.imperfect)
        assert proposal.annotated is not None
        checked = validator.check(proposal.annotated, task.answer)
        assert checked.repairs == {}
        assert [c.topic for c in checked.document.chunks()] == [
            c.topic for c in document(task, sections.imperfect).chunks()
        ]


def test_the_shipped_probabilities_are_the_defaults() -> None:
    assert load_config(CONFIG, AnnotateConfig).data.imperfect == ImperfectSection()


def test_a_record_that_is_not_the_atlas_s_is_rejected() -> None:
    foreign = Instruction("a", "a", ({"role": "user", "content": "What is tea?"},), "A drink.")
    (proposal,) = proposals([foreign], ImperfectSection())
    assert (proposal.annotated, proposal.reason) == (None, "no truth")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.imperfect.merges=1.3", "merges 1.3: expected a probability from 0 to 1"),
        ("data.imperfect.marks.inline=-1", "inline -1"),
        ("data.annotator=atlas", "imperfect: has no effect without annotator: imperfect"),
        ("data.source.echo=0.1", "no ground truth for annotator: imperfect"),
    ],
)
def test_a_mistake_is_named(override: str, message: str) -> None:
    overrides = [override, "data.imperfect.seed=3"]
    with pytest.raises(ConfigError, match=message):
        load_config(CONFIG, AnnotateConfig, overrides)
