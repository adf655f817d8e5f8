"""Single requests, as people make them, by name: each draws a prompt of a split and the plan of its answer."""

import random
from collections.abc import Callable

from pasta.data.atlas.talk.asking import backward, fact, facts, next_one, quiz, sets, yes_no
from pasta.data.atlas.talk.beyond import outside, small_talk
from pasta.data.atlas.talk.choices import (
    compare,
    compare_numbers,
    given,
    rank,
    then_compare,
    then_count,
    which_of,
)
from pasta.data.atlas.talk.describing import (
    about,
    brief,
    each,
    each_known,
    few,
    few_each,
    other_family,
    own_words,
    spelling,
)
from pasta.data.atlas.talk.draw import Turn
from pasta.data.atlas.talk.wordings import TalkSplit

Request = Callable[[random.Random, TalkSplit], Turn]
#: Requests with their share of talks (relative). Models learn last to name a thing by a value that it has: talks ask
#: for this most (docs/notes/training.md, "More wordings").
REQUESTS_BY_NAME: dict[str, tuple[float, Request]] = {
    "about": (13, about), "few": (1.5, few), "few_each": (2, few_each), "each": (5, each),
    "each_known": (1, each_known), "brief": (1.5, brief), "styled": (2, other_family), "fact": (26, fact),
    "facts": (6, facts), "quiz": (10, quiz), "backward": (36, backward), "yes_no": (6, yes_no), "sets": (8, sets),
    "next_one": (1, next_one), "compare": (8, compare), "then_compare": (2.5, then_compare),
    "then_count": (1, then_count), "rank": (16, rank), "given": (4, given), "numbers": (7, compare_numbers),
    "which_of": (18, which_of), "spelling": (4, spelling), "small_talk": (4, small_talk), "outside": (14, outside),
    "own_words": (1.5, own_words),
}  # fmt: skip
