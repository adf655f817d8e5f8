"""The teacher's examples are what the validator accepts."""

from pasta.data.annotate.prompt import EXAMPLES, SYSTEM, ask_again, prompt_for
from pasta.data.annotate.validator import ChecksSection, Validator
from pasta.data.instructions import Instruction
from pasta.lang import CONTROL_TOKENS, Codec, parse, strip
from tests.support.tokenizers import byte_level

RECORD = Instruction("1", "x:1", ({"role": "user", "content": "What is tea?"},), "A drink. <br/>")


def test_there_are_seven_examples_and_each_is_valid_as_it_stands() -> None:
    validator = Validator(ChecksSection(strip="exact", min_speedup=0.0), Codec(byte_level()))
    assert len(EXAMPLES) == 7
    for example in EXAMPLES:
        checked = validator.check(example.annotated, strip(example.annotated))
        assert checked.repairs == {}


def test_examples_show_every_case_of_the_rules() -> None:
    documents = [parse(example.annotated) for example in EXAMPLES]
    assert any(document.depth() == 2 for document in documents)
    assert sum(document.depth() == 0 for document in documents) == 2
    assert any("<sync/>" in example.annotated for example in EXAMPLES)
    assert any("\\/>" in example.annotated for example in EXAMPLES)


def test_the_rules_name_every_tag() -> None:
    assert all(tag in SYSTEM for tag in CONTROL_TOKENS)


def test_the_record_comes_last_with_its_conversation() -> None:
    messages = prompt_for(RECORD)
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 7, "user"]
    assert messages[-1]["content"].endswith("[user]\nWhat is tea?\n\nANSWER\n\nA drink. <br/>")


def test_asking_again_shows_the_fault() -> None:
    messages = ask_again(prompt_for(RECORD), "A drnk.", "at word 2")
    assert messages[-2] == {"role": "assistant", "content": "A drnk."}
    assert "at word 2" in messages[-1]["content"]
