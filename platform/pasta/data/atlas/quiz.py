"""Quizzes: questions in the prompt, each answered for itself."""

import random

from pasta.data.atlas.descriptions import draw_kind
from pasta.data.atlas.facts import FACTS, KIND_OF, spoken
from pasta.data.atlas.family import Family, Params, pick
from pasta.data.atlas.plan import Node, Part, Plan, Say, intro, lead
from pasta.data.atlas.sentences import fact_fields

#: A question and the facts that answer it, the asked-for one first.
QUESTIONS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "countries": (
        ("What is the capital of {name}?", ("capital", "place", "sight")),
        ("Which language do people speak in {name}?", ("language", "capital", "food")),
        ("What money do people use in {name}?", ("money", "place", "language")),
        ("What can I visit in {name}?", ("sight", "food", "money")),
    ),
    "elements": (
        ("What is the symbol of {name}?", ("symbol", "number", "use")),
        ("What kind of element is {name}?", ("group", "state", "use")),
        ("Where can I find {name}?", ("use", "state", "symbol")),
    ),
    "animals": (
        ("What does {name} eat?", ("food", "home", "fame")),
        ("Where does {name} live?", ("home", "class", "food")),
        ("What is the young of {name} called?", ("young", "class", "fame")),
    ),
    "instruments": (
        ("How is {name} played?", ("playing", "family", "place")),
        ("What is {name} made of?", ("material", "playing", "fame")),
    ),
    "scientists": (
        ("Who was {name}?", ("work", "birth", "fame")),
        ("What is {name} remembered for?", ("fame", "work", "interest")),
    ),
    "books": (
        ("Who wrote {name}?", ("author", "language", "story")),
        ("What does {name} tell of?", ("story", "author", "time")),
    ),
    "rivers": (
        ("Where does {name} end?", ("mouth", "source", "fame")),
        ("Which city does {name} pass?", ("city", "place", "mouth")),
    ),
}


class Quiz(Family):
    """Questions in the prompt, each answered with the fact asked for and two more."""

    name = "quiz"
    independent = True
    weight = 8.0
    wordings = ("Answer these questions: {questions}", "A quiz for you: {questions}")

    def draw(self, rng: random.Random) -> Params:
        asked: list[list[str | int]] = []
        size = pick(rng, {4: 1, 5: 3, 6: 4, 7: 4, 8: 3, 9: 2, 10: 1, 11: 0.3})
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
            kind = KIND_OF[name]
            says: list[Say] = []
            for attribute in QUESTIONS[kind][index][1]:
                form = f"{kind}.line.{attribute}"
                says.append(
                    Say(form, fact_fields(form, name) or {}, " " if says else lead(layout, place), name)
                )
            parts.append(Part(name, tuple(says)))
        return [intro("intro.answers", layout), *parts]


_ASKED = {
    question.format(name=spoken(name)): (name, index)
    for kind, questions in QUESTIONS.items()
    for index, (question, _) in enumerate(questions)
    for name in FACTS[kind]
}
