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
#: Requests with their share of talks (relative).
REQUESTS_BY_NAME: dict[str, tuple[float, Request]] = {
    "about": (9, about), "few": (1.5, few), "few_each": (3, few_each), "each": (8, each), "each_known": (1, each_known),
    "brief": (1.5, brief), "styled": (3, other_family), "fact": (22, fact), "facts": (5, facts), "quiz": (2.5, quiz),
    "backward": (14, backward), "yes_no": (5, yes_no), "sets": (3, sets), "next_one": (1, next_one),
    "compare": (7, compare), "then_compare": (2.5, then_compare), "then_count": (2, then_count), "rank": (13, rank),
    "given": (4, given), "numbers": (8, compare_numbers), "which_of": (11, which_of), "spelling": (4, spelling),
    "small_talk": (3, small_talk), "outside": (14, outside), "own_words": (2.5, own_words),
}  # fmt: skip
