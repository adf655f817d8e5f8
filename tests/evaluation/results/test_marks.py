"""What a method marks as independent, against the truth of atlas tasks."""

import itertools

from pasta.data.annotate.imperfect import ByLayout, ImperfectSection, guessed
from pasta.data.atlas import heldout_prompts
from pasta.data.atlas.plan import to_document
from pasta.evaluation.results.marks import marks_of
from pasta.evaluation.results.outcomes import outcomes_of
from pasta.lang import Chunk, Document, Text, to_text
from tests.support.evaluations import answer, prompt

TASKS = heldout_prompts(80)
NEVER, ALWAYS = (ByLayout(*[chance] * 4) for chance in (0.0, 1.0))


def marks(options=None, tasks=TASKS, change=lambda document: document):
    """The marks of a method that errs as an imperfect teacher does; without options it writes the truth, with a
    ``change``."""
    records = [
        prompt(
            str(n),
            {
                "twin": answer(task.answer),
                "pasta": answer(
                    task.answer,
                    annotated=to_text(
                        change(task.document)
                        if options is None
                        else to_document(guessed(task, str(n), options))
                    ),
                ),
            },
            text=task.prompt,
            family=task.family,
            independent=task.independent,
        )
        for n, task in enumerate(tasks)
    ]
    return marks_of(outcomes_of(records, [], baseline="twin", methods=["pasta"])["pasta"])


def test_the_truth_marks_all_and_forks_nothing_that_is_dependent():
    found = marks()
    assert (found.independent_marked.value, found.wrong_forks.value, found.syncs_right.value) == (
        1.0,
        0.0,
        1.0,
    )
    assert found.independent_marked.count + found.wrong_forks.count == len(TASKS)


def test_plain_answers_mark_nothing_and_say_nothing_of_syncs():
    found = marks(ImperfectSection(marks=NEVER, forks=NEVER))
    assert (found.independent_marked.value, found.wrong_forks.value, found.syncs_right) == (0.0, 0.0, None)


def test_forks_of_dependent_steps_are_wrong():
    assert marks(ImperfectSection(marks=NEVER, forks=ALWAYS)).wrong_forks.value == 1.0


def test_forgotten_syncs_are_wrong_where_something_reads_the_parts():
    forgetful = ImperfectSection(marks=ALWAYS, forks=NEVER, merges=0.0, forgets_syncs=1.0)
    found = marks(forgetful)
    assert (found.independent_marked.value, found.syncs_right.value) == (1.0, 0.0)
    assert 0 < found.syncs_right.count < found.independent_marked.count


def test_two_parts_in_one_chunk_are_not_marked():
    merged = ImperfectSection(marks=ALWAYS, forks=NEVER, merges=1.0, forgets_syncs=0.0)
    assert marks(merged).independent_marked.value < 0.4


def is_chunk(item):
    return isinstance(item, Chunk)


def renamed(document):
    """As a method writes it that has learned other topics: from an annotator that goes by the layout, or a teacher."""

    def items(given):
        return tuple(
            Chunk(f"Part {n}", item.tokens, items(item.items)) if is_chunk(item) else item
            for n, item in enumerate(given)
        )

    return Document(items(document.items))


def test_a_part_is_marked_whatever_its_topic():
    found = marks(change=renamed)
    assert (found.independent_marked.value, found.wrong_forks.value, found.syncs_right.value) == (
        1.0,
        0.0,
        1.0,
    )


def taken_in(document):
    """The first chunk takes in the one behind it, under its own topic."""
    items = list(document.items)
    places = [n for n, item in enumerate(items) if is_chunk(item)]
    for first, second in itertools.pairwise(places):
        if second == first + 1:
            both = Chunk(items[first].topic, 10, (*items[first].items, *items[second].items))
            return Document((*items[:first], both, *items[second + 1 :]))
    return document


def test_two_parts_under_the_topic_of_one_are_not_marked():
    task = next(each for each in TASKS if each.family == "profiles")
    parts = len([*task.document.chunks()])
    assert marks(tasks=[task], change=taken_in).independent_marked.value == (parts - 2) / parts


def test_parts_within_two_that_one_chunk_takes_in_are_marked():
    task = next(each for each in TASKS if each.family == "encyclopedia")
    parts = len([*task.document.chunks()])
    assert marks(tasks=[task], change=taken_in).independent_marked.value == (parts - 2) / parts


def test_entries_are_marked_and_waited_for_in_chapters_that_are_no_chunk():
    tasks = heldout_prompts(300)
    task = next(each for each in tasks if each.family == "encyclopedia" and "Count those" in each.prompt)
    chapters, parts = (
        len([*chunks]) for chunks in (filter(is_chunk, task.document.items), task.document.chunks())
    )

    def opened(document):
        items = (item.items if is_chunk(item) else (item,) for item in document.items)
        return Document(tuple(itertools.chain.from_iterable(items)))

    found = marks(tasks=[task], change=opened)
    assert found.independent_marked.value == (parts - chapters) / parts
    assert found.syncs_right.value == 1.0


def test_a_part_with_a_wrong_fact_in_it_is_marked():
    task = next(each for each in TASKS if each.family == "profiles")

    def err(document):
        first = next(n for n, item in enumerate(document.items) if is_chunk(item))
        chunk = document.items[first]
        told = Text(f"{chunk.items[0].text.rpartition(' ')[0]} nonsense.")
        items = [*document.items]
        items[first] = Chunk(chunk.topic, chunk.tokens, (told, *chunk.items[1:]))
        return Document(tuple(items))

    assert marks(tasks=[task], change=err).independent_marked.value == 1.0


def test_other_prompts_than_the_atlas_s_have_no_truth():
    records = [prompt("a", {"twin": answer(), "pasta": answer()})]
    assert marks_of(outcomes_of(records, [], baseline="twin", methods=["pasta"])["pasta"]) is None
