"""Requests of Skeleton-of-Thought from a prompt and its answer: points by layout, which join to the answer again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.data.atlas import AtlasTask, grade, heldout_prompts
from pasta.data.instructions import Instruction
from pasta.data.skeletons import PROMPTED, TRAINED, write_skeleton
from pasta.data.sot import split_points, to_requests
from tests.support.documents import texts

TWO = (
    "- Tea is made of leaves, and it is served hot, with milk and a biscuit.\n"
    "- Coffee is made of beans, and it is served hot too, with sugar and a cake."
)


def record(answer: str, prompt: str = "Name drinks.") -> Instruction:
    return Instruction("a", "here", ({"role": "user", "content": prompt},), answer)


def labels(answer: str) -> list[str]:
    points = split_points(answer)
    assert "".join(point.text for point in points) == answer
    return [point.label for point in points]


def test_items_are_points_and_the_opening_line_belongs_to_the_first() -> None:
    answer = "Here they are:\n- Tea, which is made of leaves.\n- Coffee, black.\n\nBoth are best served hot."
    assert labels(answer) == ["Tea, which is made of", "Coffee, black", "Both are best served hot"]
    assert split_points(answer)[0].text == "Here they are:\n- Tea, which is made of leaves."
    assert split_points(answer)[1].text == "\n- Coffee, black."


def test_paragraphs_are_points() -> None:
    answer = "Tea is made of leaves. It is hot.\n\nCoffee is made of beans. It is hot too."
    assert labels(answer) == ["Tea is made of leaves", "Coffee is made of beans"]


def test_labels_in_a_script_without_spaces_are_a_few_characters() -> None:
    answer = (
        "饮料有三种：\n\n1. 茶：茶是由茶树的叶子经过采摘和烘干以后制成的，人们用热水冲泡它。\n"
        "2. 咖啡：咖啡是由咖啡树的种子经过烘焙和研磨以后制成的，味道浓郁。\n"
        "3. 可可由可可树的种子经过发酵和烘焙以后制成，常常和牛奶混合。"
    )
    assert labels(answer) == ["茶", "咖啡", "可可由可可树的种"]
    assert len(to_requests(record(answer), TRAINED)) == 4


def test_sections_with_lists_of_their_own_are_points() -> None:
    answer = "Drinks.\n\nHot ones:\n- tea\n- coffee\n\nCold ones:\n\n- water\n- ice"
    assert labels(answer) == ["Hot ones", "Cold ones"]


def test_headings_open_the_points_below_them() -> None:
    answer = "# Hot\n\nTea is one.\nCoffee is another.\n\n## Cold\n\nWater is one."
    assert labels(answer) == ["Hot", "Cold"]
    answer = "Tea is made of leaves. It is hot.\n\n**Cold**\n\nWater is one."
    assert labels(answer) == ["Tea is made of leaves", "Cold"]


PIECES = [
    "\n",
    "\n\n",
    "- ",
    "1. ",
    "2. ",
    "  - ",
    "**Tea** ",
    "Tea:",
    "# ",
    "```\n",
    "| a |",
    "One is. Two. ",
    "x",
]


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), texts), max_size=20).map("".join))
def test_the_points_of_any_text_join_to_it_and_make_a_skeleton(answer: str) -> None:
    points = split_points(answer)
    assert "".join(point.text for point in points) == answer
    written = write_skeleton([point.label for point in points[: TRAINED.max_points]])
    assert len(TRAINED.read(written)) == min(len(points), TRAINED.max_points)


def test_an_answer_becomes_its_skeleton_and_each_of_its_points() -> None:
    skeleton, tea, coffee = to_requests(record(TWO), TRAINED)
    assert skeleton.messages == tuple(TRAINED.skeleton_messages(record(TWO).messages))
    assert skeleton.answer == "1. Tea is made of leaves\n2. Coffee is made of beans"
    assert TRAINED.read(skeleton.answer) == labels(TWO)
    assert coffee.messages == tuple(TRAINED.point_messages(record(TWO).messages, labels(TWO), 2))
    assert tea.answer + coffee.answer == TWO
    assert coffee.answer.startswith("\n- Coffee")
    assert [each.id for each in (skeleton, tea, coffee)] == ["a/skeleton", "a/1", "a/2"]


def test_texts_lose_their_white_space_where_joining_gives_it_back() -> None:
    _, _, coffee = to_requests(record(TWO), PROMPTED)
    assert coffee.answer.startswith("- Coffee")


@pytest.mark.parametrize(
    "answer",
    [
        "Tea is made of leaves. Coffee is made of beans.",
        "- Tea\n- Coffee\n- Water",
        "\n".join(f"- Drink {n} is served hot, in a cup, with a biscuit and some milk." for n in range(17)),
    ],
    ids=["one paragraph", "hardly longer than its skeleton", "more points than a skeleton may have"],
)
def test_what_is_not_worth_a_skeleton_has_one_of_one_point(answer: str) -> None:
    skeleton, plain = to_requests(record(answer), TRAINED)
    assert len(TRAINED.read(skeleton.answer)) == 1
    assert plain == record(answer)


def test_reference_answers_from_their_own_points_get_full_marks() -> None:
    right = total = 0
    for task in heldout_prompts(100):
        result = grade(task, answered(task))
        right, total = right + result.right, total + result.total
    assert total > 1500
    assert right == total


def answered(task: AtlasTask) -> str:
    """The reference answer as decoding puts it together when every request gets its reference answer."""
    skeleton, *rest = to_requests(record(task.answer, task.prompt), TRAINED)
    points = TRAINED.read(skeleton.answer)
    if len(points) < 2:
        return rest[0].answer
    asked = [each.messages[-1]["content"] for each in rest]
    assert asked == [
        TRAINED.point_messages(task.messages, points, number)[-1]["content"]
        for number in range(1, len(points) + 1)
    ]
    return TRAINED.join(points, [each.answer for each in rest])


def test_most_answers_of_the_atlas_have_points() -> None:
    tasks = heldout_prompts(100)
    split = [len(split_points(task.answer)) > 1 for task in tasks]
    assert sum(split) > 0.75 * len(tasks)


def test_routed_steps_that_need_each_other_get_a_skeleton_of_one_point_and_their_prompt() -> None:
    for task in heldout_prompts(40):
        asked = Instruction("a", "here", tuple(task.messages), task.answer)
        plain, routed = (to_requests(asked, TRAINED, routed=each) for each in (False, True))
        if task.independent:
            assert routed == plain
        else:
            skeleton, whole = routed
            assert "\n" not in skeleton.answer
            assert whole == asked
    assert to_requests(record(TWO), TRAINED, routed=True) == to_requests(record(TWO), TRAINED)
