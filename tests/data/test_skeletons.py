"""What counts as a skeleton, how requests are worded, and how an answer is put together."""

import pytest

from pasta.data.skeletons import PROMPTED, TRAINED, SkeletonPrompts, write_skeleton

ASKED = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Name {drinks}."}]


@pytest.mark.parametrize(
    "written",
    [
        "1. Tea\n2. Iced coffee",
        "1) Tea\n\n2) Iced coffee\n",
        "Outline:\n1. Tea\n2. Iced coffee",
        "  1.  **Tea**\n  2. *Iced coffee*",
    ],
)
def test_a_numbered_list_is_a_skeleton(written: str) -> None:
    assert PROMPTED.read(written) == ["Tea", "Iced coffee"]


@pytest.mark.parametrize(
    "written",
    [
        "",
        "I cannot do that.",
        "- Tea\n- Coffee",
        "1. Tea\n3. Coffee",
        "2. Tea\n3. Coffee",
        "1. Tea\nwhich is hot\n2. Coffee",
        "1. Tea\n2.",
        "1. Tea\n2. **",
        "Here is a thought.\n1. Tea\n2. Coffee",
        write_skeleton([f"Point {n}" for n in range(11)]),
    ],
)
def test_anything_else_is_none(written: str) -> None:
    assert PROMPTED.read(written) == []


def test_one_point_is_read_as_one() -> None:
    assert PROMPTED.read("1. Tea") == ["Tea"]


@pytest.mark.parametrize("prompts", [PROMPTED, TRAINED])
def test_requests_take_the_place_of_the_last_message(prompts: SkeletonPrompts) -> None:
    points = ["Tea", "Iced coffee"]
    for messages in (prompts.skeleton_messages(ASKED), prompts.point_messages(ASKED, points, 2)):
        assert messages[0] == ASKED[0]
        assert [message["role"] for message in messages] == ["system", "user"]
        assert "Name {drinks}." in messages[1]["content"]
    content = prompts.point_messages(ASKED, points, 2)[1]["content"]
    assert "1. Tea\n2. Iced coffee" in content
    assert "point 2: Iced coffee" in content


def test_a_prompted_answer_is_a_numbered_list_of_the_points() -> None:
    assert (
        PROMPTED.join(["Tea", "Ice"], [" It is hot.\n", "It is cold."])
        == "1. Tea: It is hot.\n2. Ice: It is cold."
    )


def test_a_trained_answer_is_the_texts_as_they_come() -> None:
    assert TRAINED.join(["Tea", "Ice"], ["Drinks:\n- Tea.", "\n- Ice."]) == "Drinks:\n- Tea.\n- Ice."


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"skeleton": "Outline it."}, r"skeleton 'Outline it.': lacks \{request\}"),
        (
            {"point": "{request} {point} {topic}"},
            r"has an unknown \{topic\}; its placeholders are \{max_points\}",
        ),
        ({"item": "{text} {"}, "write {{ for a brace"),
        ({"skeleton": "{request:d}"}, r"skeleton '{request:d}': cannot be filled in \(Unknown format"),
        ({"point": "{request} {point!q}"}, r"point '.*': cannot be filled in \(Unknown conversion"),
        ({"item": "{number:d}. {text:>{width}}"}, r"item '.*': cannot be filled in \('width'\)"),
        ({"max_points": 1}, "max_points 1: expected at least 2"),
    ],
)
def test_words_without_their_places_are_refused(changes: dict[str, object], expected: str) -> None:
    words = {"skeleton": "{request}", "point": "{request} {point}"}
    with pytest.raises(ValueError, match=expected):
        SkeletonPrompts(**{**words, **changes})  # type: ignore[arg-type]
