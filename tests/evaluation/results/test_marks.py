"""What a method marks as independent, against the truth of atlas tasks."""

from pasta.data.annotate.imperfect import ByLayout, ImperfectSection, guessed
from pasta.data.atlas import heldout_prompts
from pasta.data.atlas.plan import to_document
from pasta.evaluation.results.marks import marks_of
from pasta.evaluation.results.outcomes import outcomes_of
from pasta.lang import to_text
from tests.support.evaluations import answer, prompt

TASKS = heldout_prompts(80)
NEVER, ALWAYS = (ByLayout(*[chance] * 4) for chance in (0.0, 1.0))


def marks(options=None, tasks=TASKS):
    """The marks of a method that errs as an imperfect teacher does; without options it writes the truth."""
    records = [
        prompt(
            str(n),
            {
                "twin": answer(task.answer),
                "pasta": answer(
                    task.answer,
                    annotated=to_text(
                        task.document if options is None else to_document(guessed(task, str(n), options))
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


def test_other_prompts_than_the_atlas_s_have_no_truth():
    records = [prompt("a", {"twin": answer(), "pasta": answer()})]
    assert marks_of(outcomes_of(records, [], baseline="twin", methods=["pasta"])["pasta"]) is None
