"""Conversations are held with the model's own answers, and right answers counted by kind."""

from pasta.errors import UserError
from pasta.evaluation.methods.answers import Answer
from pasta.evaluation.people.measure import report, shares, talks
from pasta.evaluation.people.prompts import Conversation, ExpectedTurn

CAPITAL = ExpectedTurn("Capital of Sweden?", things=("Sweden",), contains=("Stockholm",))
NEXT = ExpectedTurn("And Norway?", things=("Norway",), contains=("Oslo",))
CONVERSATIONS = [Conversation("one fact", (CAPITAL,)), Conversation("follow-up", (CAPITAL, NEXT))]


class Scripted:
    """Answers the last message from a table; refuses what is not in it."""

    def __init__(self, answers):
        self.answers = answers
        self.seen = []

    def answer(self, prompt):
        self.seen.append(prompt.messages)
        text = self.answers.get(prompt.messages[-1]["content"])
        if text is None:
            raise UserError("the prompt is too long")
        return Answer(text, None, 3, {}, 3, 3, (), None, (), "stop")


def test_a_follow_up_comes_after_the_models_own_answer():
    model = Scripted({"Capital of Sweden?": "It is Stockholm.", "And Norway?": "Oslo."})
    assert all(held.right for held in talks({"twin": model}, CONVERSATIONS))
    assert model.seen[-1] == [
        {"role": "user", "content": "Capital of Sweden?"},
        {"role": "assistant", "content": "It is Stockholm."},
        {"role": "user", "content": "And Norway?"},
    ]


def test_a_conversation_ends_at_its_first_wrong_answer():
    model = Scripted({"Capital of Sweden?": "Oslo."})
    _, held = talks({"twin": model}, CONVERSATIONS)
    assert not held.right
    assert len(held.exchanges) == 1


def test_a_prompt_that_the_model_cannot_take_is_answered_wrong():
    held = list(talks({"twin": Scripted({})}, CONVERSATIONS))
    assert [each.exchanges[-1].faults for each in held] == [("the prompt is too long",)] * 2


def test_shares_are_counted_by_method_and_kind_and_wrong_answers_listed():
    methods = {
        "twin": Scripted({"Capital of Sweden?": "Stockholm.", "And Norway?": "Bergen."}),
        "pasta": Scripted({"Capital of Sweden?": "Stockholm.", "And Norway?": "Oslo."}),
    }
    held = list(talks(methods, CONVERSATIONS))
    assert shares(held)["twin"] == {
        "one fact": {"right": 1, "total": 1},
        "follow-up": {"right": 0, "total": 1},
        "all": {"right": 1, "total": 2},
    }
    text = report(held)
    assert "| all            | 1 of 2 (50%)  | 2 of 2 (100%) |" in text
    assert "2. follow-up, twin" in text
    assert "Bergen." in text
    assert "wrong: lacks 'Oslo'" in text
    assert "Bergen." not in report(held, wrong=False)
