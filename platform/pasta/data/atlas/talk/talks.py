"""Conversations: one request, or one that follows up on others, with the answer to the last."""

import random
from dataclasses import dataclass

from pasta.data.atlas.plan import Plan, statements, to_document, token_counter, with_estimates
from pasta.data.atlas.talk.draw import Turn
from pasta.data.atlas.talk.followups import FOLLOW_UPS
from pasta.data.atlas.talk.requests import REQUESTS_BY_NAME
from pasta.data.atlas.talk.wordings import TalkSplit
from pasta.lang import Codec, Document, render

#: Turns of a conversation, relative.
_TURNS = {1: 7, 2: 2, 3: 1}
_FOLLOW_UP_RATE = 0.85
#: Statements of an answer that a conversation goes on from: longer ones would fill the rows of training.
_MAX_STATEMENTS = 24
_OPENINGS = (
    "about", "fact", "fact", "each", "facts", "brief", "backward", "compare", "rank", "few", "few_each", "small_talk",
    "outside", "then_compare", "which_of",
)  # fmt: skip


@dataclass(frozen=True)
class Talk:
    """A conversation up to its last request, and what answers that: ``plan`` and the same as a document.

    ``kind`` names the last request. Estimates are provisional until counted with a codec.
    """

    kind: str
    messages: list[dict[str, str]]
    plan: Plan
    document: Document


def sample_talk(rng: random.Random, split: TalkSplit, codec: Codec | None = None) -> Talk:
    """A conversation whose wordings and combinations belong to the split; estimates are exact with a codec."""
    (num_turns,) = rng.choices(list(_TURNS), list(_TURNS.values()))
    names = list(REQUESTS_BY_NAME)
    weights = [weight for weight, _ in REQUESTS_BY_NAME.values()]
    messages: list[dict[str, str]] = []
    before: Turn | None = None
    for place in range(num_turns):
        last = place == num_turns - 1
        kind, turn = "", None
        if before is not None and rng.random() < _FOLLOW_UP_RATE:
            kind, turn = _follow_up(rng, split, before)
        while turn is None:
            (kind,) = rng.choices(names, weights) if last else (rng.choice(_OPENINGS),)
            turn = REQUESTS_BY_NAME[kind][1](rng, split)
            if not last and sum(1 for _ in statements(turn.plan)) > _MAX_STATEMENTS:
                turn = None
        messages.append({"role": "user", "content": turn.prompt})
        if not last:
            messages.append({"role": "assistant", "content": render(to_document(turn.plan))})
        before = turn
    assert before is not None
    document = to_document(before.plan)
    if codec is not None:
        document = with_estimates(document, token_counter(codec))
    return Talk(kind, messages, before.plan, document)


def _follow_up(rng: random.Random, split: TalkSplit, before: Turn) -> tuple[str, Turn | None]:
    """A next turn among those that are possible; none if none is."""
    options = list(FOLLOW_UPS)
    while options:
        (option,) = rng.choices(options, [weight for weight, _ in options])
        turn = option[1](rng, split, before)
        if turn is not None:
            return f"then {option[1].__name__}", turn
        options.remove(option)
    return "", None
