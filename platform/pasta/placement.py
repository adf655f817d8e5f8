"""Decides where threads are decoded; does no I/O.

``serve/interpreter/response.py`` carries the decisions out, ``simulation/cluster.py`` simulates them.

A response has a home: the replica that decodes its main thread. Whenever a chunk is forked, its policy decides
twice: the home, which knows its lanes, whether the chunk leaves; the Interpreter, which knows all replicas, where
it then goes. The decoded text depends on neither decision.
"""

import hashlib
from array import array
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Policy = Literal["local", "spread", "auto"]

#: Tokens of a prompt whose prefill costs about what one more lane beside an answer costs.
_TOKENS_PER_LANE = 64
#: Up to the knee a step costs at most this many times a step with one lane.
_KNEE_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class LaneCosts:
    """``step_s``: a step with one lane; ``knee``: lanes up to which a step costs little more than that;
    ``lane_s``: what another lane adds to a step; ``prefill_s``: a token of a prompt. Seconds."""

    step_s: float
    knee: int
    lane_s: float
    prefill_s: float

    @classmethod
    def of(cls, step_s: Mapping[int, float], prefill_s: float) -> "LaneCosts":
        """Make the costs from the seconds of a step by its number of lanes, 1 among them. The knee is the last one
        before a step that costs much more."""
        lanes, knee = sorted(step_s), 1
        for count in lanes:
            if step_s[count] > _KNEE_RATIO * step_s[1]:
                break
            knee = count
        lane_s = max(0.0, step_s[lanes[-1]] - step_s[1]) / max(1, lanes[-1] - 1)
        return cls(step_s[1], knee, lane_s, prefill_s)


@dataclass(frozen=True, slots=True)
class Home:
    """The home's state when a chunk is forked: its ``lanes`` in use, the new chunk's included, and its costs."""

    lanes: int
    costs: LaneCosts


class Placement(Protocol):
    """A policy of where chunks are decoded."""

    def leaves(self, home: Home, estimate: int, visible: int) -> bool:
        """Whether a chunk of ``estimate`` tokens that sees ``visible`` tokens should leave its home."""
        ...

    def choose(self, home: str, loads: Mapping[str, int]) -> str:
        """The replica for a chunk that has left, given every replica's lanes; the home takes it back."""
        ...


class Local:
    """Every chunk is a lane of its home."""

    def leaves(self, home: Home, estimate: int, visible: int) -> bool:
        """Never."""
        return False

    def choose(self, home: str, loads: Mapping[str, int]) -> str:
        """The home."""
        return home


class Spread:
    """Every chunk on the least loaded replica; of equals, the home, where it needs no prefill."""

    def leaves(self, home: Home, estimate: int, visible: int) -> bool:
        """Always: only the Interpreter knows who is least loaded."""
        return True

    def choose(self, home: str, loads: Mapping[str, int]) -> str:
        """The least loaded replica."""
        return min({home: 0, **loads}, key=lambda name: (loads.get(name, 0), name != home, name))


class Auto(Spread):
    """At home up to its knee. Beyond it, a chunk leaves if that saves more than it costs.

    A chunk that stays slows every lane of the home in each of its steps. For one that leaves, the other replica
    prefills what the chunk sees, and the home prefills the chunk's tokens when it comes back.
    """

    def leaves(self, home: Home, estimate: int, visible: int) -> bool:
        """Beyond the knee, if the chunk is long enough to pay for its prefill."""
        costs = home.costs
        if home.lanes <= costs.knee:
            return False
        return home.lanes * estimate * costs.lane_s > (visible + estimate) * costs.prefill_s


POLICIES: dict[Policy, Placement] = {"local": Local(), "spread": Spread(), "auto": Auto()}


def prefix_digests(tokens: Sequence[int], chunk: int, salt: str) -> list[tuple[int, bytes]]:
    """Name the beginnings of a prompt that another one can share: each number of whole chunks, and all of it.

    Returns (number of tokens, digest) in rising order. Decoders report what they hold by these names; an Interpreter
    compares them with the names of a new prompt. Another salt gives other names.
    """
    names = []
    digest = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=8)
    for start in range(0, len(tokens), chunk):
        digest.update(array("q", tokens[start : start + chunk]).tobytes())
        names.append((min(start + chunk, len(tokens)), digest.digest()))
    return names


def matched_tokens(names: Sequence[tuple[int, bytes]], held: Container[bytes]) -> int:
    """How many of a prompt's first tokens are ``held``, given its ``prefix_digests``."""
    return next((count for count, name in reversed(names) if name in held), 0)


def choose_home(loads: Mapping[str, int], matched: Mapping[str, int]) -> str:
    """The home for a response, given each replica's lanes, and how many tokens of the prompt some of them hold.

    A replica that holds more of the prompt may have more lanes than another one: one for each ``_TOKENS_PER_LANE``
    tokens that it need not compute.
    """
    return min(loads, key=lambda name: (loads[name] - matched.get(name, 0) / _TOKENS_PER_LANE, name))
