"""Quizzes: questions in the prompt, each answered for itself."""

import random

from pasta.data.atlas.descriptions import draw_kind
from pasta.data.atlas.facts import FACTS, KIND_OF, spoken
from pasta.data.atlas.family import Family, Params, weighted_choice
from pasta.data.atlas.plan import Node, Part, Plan, intro, lead, line
from pasta.data.atlas.words import read_words

#: Kind, then a question and the facts that answer it, the asked-for one first.
QUESTIONS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = read_words("questions")["quiz"]


class Quiz(Family):
    """Questions in the prompt, each answered with the fact asked for and two more."""

    name = "quiz"
    independent = True
    weight = 8.0
    wordings = ("Answer these questions: {questions}", "A quiz for you: {questions}")

    def draw(self, rng: random.Random) -> Params:
        asked: list[list[str | int]] = []
        size = weighted_choice(rng, {4: 1, 5: 3, 6: 4, 7: 4, 8: 3, 9: 2, 10: 1, 11: 0.3})
        names: set[str] = set()
        while len(asked) < size:
            kind = draw_kind(rng, tuple(QUESTIONS))
            name = rng.choice(list(FACTS[kind]))
            if name not in names:
                names.add(name)
                asked.append([name, rng.randrange(len(QUESTIONS[kind]))])
        return {"asked": asked}

    def slots(self, params: Params) -> dict[str, str]:
        return {"questions": " ".join(self._question(name, index) for name, index in params["asked"])}

    @staticmethod
    def _question(name: str, index: int) -> str:
        return QUESTIONS[KIND_OF[name]][index][0].format(name=spoken(name))

    def unslot(self, slots: dict[str, str]) -> Params:
        asked = [_ASKED[question + "?"] for question in slots["questions"].rstrip("?").split("? ")]
        return {"asked": [[name, index] for name, index in asked]}

    def key(self, params: Params) -> list[str]:
        return sorted(f"{name}:{index}" for name, index in params["asked"])

    def plan(self, params: Params, layout: str) -> Plan:
        parts: list[Node] = []
        for place, (name, index) in enumerate(params["asked"]):
            first, *others = QUESTIONS[KIND_OF[name]][index][1]
            says = [line(name, first, lead(layout, place)), *(line(name, other, " ") for other in others)]
            parts.append(Part(name, tuple(says)))
        return [intro("intro.answers", layout), *parts]


_ASKED = {
    question.format(name=spoken(name)): (name, index)
    for kind, questions in QUESTIONS.items()
    for index, (question, _) in enumerate(questions)
    for name in FACTS[kind]
}
