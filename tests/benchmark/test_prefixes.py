"""Conversations whose prefixes are reused have questions of their own."""

import pytest

from pasta.benchmark.prefixes import TURNS, questions


@pytest.mark.slow
def test_no_conversation_asks_what_another_one_has_asked():
    asked = [task.prompt for number in range(10) for task in questions(number)]
    assert len(set(asked)) == len(asked) == 10 * TURNS
