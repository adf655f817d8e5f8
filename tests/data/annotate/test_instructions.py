"""Chat data come in several shapes; what is no instruction with an answer is named."""

from typing import Any

import pytest

from pasta.data.instructions import BrokenRecord, to_instruction

ASKED = {"role": "user", "content": "What is tea?"}


def test_messages_end_with_the_last_answer() -> None:
    turns = [
        ASKED,
        {"role": "assistant", "content": "Leaves."},
        ASKED,
        {"role": "assistant", "content": "A drink."},
    ]
    read = to_instruction({"messages": [*turns, ASKED]}, "x:1")
    assert (read.answer, len(read.messages)) == ("A drink.", 3)


@pytest.mark.parametrize(
    "after", [{"role": "tool", "content": "42"}, {"role": "user", "content": None}, {"content": "?"}, None]
)
def test_what_follows_the_last_answer_is_not_read(after: Any) -> None:
    answer = {"role": "assistant", "content": "A drink."}
    read = to_instruction({"messages": [ASKED, answer, after]}, "x:1")
    assert (read.messages, read.answer) == ((ASKED,), "A drink.")
    with pytest.raises(BrokenRecord, match=r"^messages: message 2: "):
        to_instruction({"messages": [ASKED, after, answer]}, "x:1")
    with pytest.raises(BrokenRecord, match=r"^messages: message 2: "):
        to_instruction({"messages": [ASKED, after], "answer": "A drink."}, "x:1")


def test_a_last_answer_without_a_text_is_not_passed_over() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}
    turns = [ASKED, {"role": "assistant", "content": "Leaves."}, ASKED, called]
    with pytest.raises(BrokenRecord, match=r"^messages: message 4: expected text, got NoneType$"):
        to_instruction({"messages": turns}, "x:1")


def test_messages_may_hold_their_answer_beside_them() -> None:
    read = to_instruction({"messages": [ASKED], "annotated": "A drink.", "answer": "A drink."}, "x:1")
    assert (read.messages, read.answer) == ((ASKED,), "A drink.")


def test_conversations_are_renamed_to_roles() -> None:
    turns = [("system", "Be brief."), ("human", "What is tea?"), ("gpt", "A drink.")]
    record = {"conversations": [{"from": who, "value": text, "weight": 1.0} for who, text in turns]}
    read = to_instruction(record, "x:1")
    assert [message["role"] for message in read.messages] == ["system", "user"]
    assert read.answer == "A drink."


@pytest.mark.parametrize("key", ["system", "system_prompt"])
def test_a_system_message_beside_the_conversation_comes_first(key: str) -> None:
    """As LLaMA-Factory has it in data of ShareGPT's form."""
    turns = [{"from": "human", "value": "What is tea?"}, {"from": "gpt", "value": "A drink."}]
    system = {"role": "system", "content": "Be brief."}
    assert to_instruction({"conversations": turns, key: "Be brief."}, "x:1").messages == (system, ASKED)
    asked = [system, ASKED, {"role": "assistant", "content": "A drink."}]
    assert to_instruction({"messages": asked, key: "Be long."}, "x:1").messages == (system, ASKED)
    for nothing in ("", None, 3):
        assert to_instruction({"conversations": turns, key: nothing}, "x:1").messages == (ASKED,)


def test_a_developer_s_message_is_a_system_message() -> None:
    turns = [
        {"role": "developer", "content": "Be brief."},
        ASKED,
        {"role": "assistant", "content": "A drink."},
    ]
    assert to_instruction({"messages": turns}, "x:1").messages[0] == {
        "role": "system",
        "content": "Be brief.",
    }


@pytest.mark.parametrize(
    "record",
    [
        {"instruction": "What is tea?", "output": "A drink."},
        {"instruction": "What is tea?", "input": "", "output": "A drink."},
        {"prompt": "What is tea?", "completion": "A drink."},
        {"question": "What is tea?", "system_prompt": "", "response": "A drink."},
    ],
)
def test_an_instruction_with_its_output(record: dict[str, Any]) -> None:
    read = to_instruction(record, "x:1")
    assert (read.messages, read.answer, read.id) == ((ASKED,), "A drink.", "x:1")


@pytest.mark.parametrize("completion", [[{"role": "assistant", "content": "A drink."}], "A drink."])
def test_a_prompt_of_messages_with_its_completion(completion: Any) -> None:
    """As TRL has it in data of its conversational form of prompts and completions."""
    earlier = [ASKED, {"role": "assistant", "content": "Leaves."}]
    read = to_instruction({"prompt": [*earlier, ASKED], "completion": completion}, "x:1")
    assert (read.messages, read.answer) == ((*earlier, ASKED), "A drink.")
    read = to_instruction({"prompt": [ASKED], "completion": completion, "system": "Be brief."}, "x:1")
    assert read.messages == ({"role": "system", "content": "Be brief."}, ASKED)
    with pytest.raises(BrokenRecord, match=r"^prompt: message 2: unknown role 'tool'$"):
        to_instruction(
            {"prompt": [ASKED, {"role": "tool", "content": "42"}], "completion": completion}, "x:1"
        )


@pytest.mark.parametrize("instruction", ["", "\n"])
def test_an_input_alone_is_the_question(instruction: str) -> None:
    read = to_instruction({"instruction": instruction, "input": "What is tea?", "output": "A drink."}, "x:1")
    assert read.messages == ({"role": "user", "content": "What is tea?"},)


def test_an_input_follows_its_instruction() -> None:
    read = to_instruction({"instruction": "Translate.", "input": "thé", "output": "tea", "id": 7}, "x:1")
    assert read.messages[0]["content"] == "Translate.\n\nthé"
    assert read.id == "7"


def test_a_context_follows_its_instruction() -> None:
    """As data sets of Dolly's form have it."""
    record = {
        "instruction": "When did it open?",
        "context": "The line opened in 1863.",
        "response": "In 1863.",
    }
    read = to_instruction(record, "x:1")
    assert read.messages[0]["content"] == "When did it open?\n\nThe line opened in 1863."


def test_an_instruction_s_history_comes_before_it() -> None:
    """As LLaMA-Factory has it in data of Alpaca's form."""
    record = {"system": "Be brief.", "instruction": "And coffee?", "input": "", "output": "Roasted seeds."}
    read = to_instruction(record | {"history": [["What is tea?", "Leaves."]]}, "x:1")
    assert [message["role"] for message in read.messages] == ["system", "user", "assistant", "user"]
    assert [message["content"] for message in read.messages[1:]] == ["What is tea?", "Leaves.", "And coffee?"]
    assert read.answer == "Roasted seeds."
    for nothing in ([], None, ""):
        assert len(to_instruction(record | {"history": nothing}, "x:1").messages) == 2


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ("What is tea?", "history: expected a list of pairs, an instruction and its output each"),
        ([["What is tea?"]], "history: pair 1: expected a list of an instruction and its output"),
        ([["Tea?", "Leaves."], ["Milk?", None]], "history: pair 2: expected text, got NoneType"),
    ],
)
def test_a_history_that_is_none_is_named(history: Any, expected: str) -> None:
    with pytest.raises(BrokenRecord, match=f"^{expected}$"):
        to_instruction({"instruction": "And coffee?", "output": "Seeds.", "history": history}, "x:1")


def test_an_answer_that_follows_another_answer_has_no_question() -> None:
    turns = [ASKED, {"role": "assistant", "content": "Leaves."}, {"role": "assistant", "content": "A drink."}]
    with pytest.raises(
        BrokenRecord, match="no question: a message of the assistant stands before the answer"
    ):
        to_instruction({"messages": turns}, "x:1")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (["a"], "expected an object"),
        ({"text": "a"}, "expected messages, conversations, or instruction and output; keys here: 'text'"),
        ({"messages": []}, "messages: expected a list of objects"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "message 1: unknown role 'tool'"),
        ({"messages": [{"role": "user"}]}, "message 1: expected an object with 'role' and 'content'"),
        ({"messages": [ASKED]}, "no answer"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "no question"),
        ({"instruction": "a", "output": " \n"}, "the answer is empty"),
        ({"instruction": "a"}, "expected its output"),
        ({"instruction": 3, "output": "b"}, "instruction: expected text, got int"),
        ({"prompt": ["a"], "completion": "b"}, "prompt: expected text, got list"),
        ({"prompt": [ASKED], "completion": [ASKED]}, "completion: no message of the assistant"),
        ({"prompt": [ASKED], "completion": ["b"]}, "completion: expected text, got list"),
        (
            {"prompt": [ASKED], "completion": [ASKED, "b"]},
            "completion: message 2: expected an object with 'role'",
        ),
        ({"prompt": [ASKED], "completion": 3}, "completion: expected text, got int"),
        ({"instruction": "a", "output": [{"type": "text", "text": None}]}, "output: expected text, got list"),
        ({"instruction": "a", "output": "\ud800"}, "half of a surrogate pair"),
    ],
)
def test_what_is_no_instruction_is_named(record: Any, expected: str) -> None:
    with pytest.raises(BrokenRecord, match=expected):
        to_instruction(record, "x:1")
