"""Decides where threads are decoded; does no I/O.

``serve/interpreter/response.py`` carries the decisions out, ``simulation/cluster.py`` simulates them.

A response has a home: the replica that decodes its main thread. Whenever a chunk is forked, its policy decides
twice: the home, which knows its lanes, whether the chunk leaves; the Interpreter, which knows all replicas, where
it then goes. The decoded text depends on neither decision.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Policy = Literal["local", "spread", "auto"]

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
    """One way to place chunks."""

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
        """The least loaded."""
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


class PrefixTable:
    """Remembers which replica was home to which prompts: whole blocks of tokens, least recently used evicted."""

    def __init__(self, block: int = 64, size: int = 4096) -> None:
        self._block, self._size = block, size
        self._homes: OrderedDict[bytes, str] = OrderedDict()

    def learn(self, prompt_ids: Sequence[int], replica: str) -> None:
        """Record that ``replica`` is home to this prompt."""
        for key in self._keys(prompt_ids):
            self._homes[key] = replica
            self._homes.move_to_end(key)
        while len(self._homes) > self._size:
            self._homes.popitem(last=False)

    def longest(self, prompt_ids: Sequence[int]) -> str | None:
        """Return the replica that was home to the prompt with the longest common prefix."""
        found = None
        for key in self._keys(prompt_ids):
            if key not in self._homes:
                break
            found = self._homes[key]
        return found

    def _keys(self, prompt_ids: Sequence[int]) -> Iterator[bytes]:
        digest = hashlib.blake2b(digest_size=16)
        for end in range(self._block, len(prompt_ids) + 1, self._block):
            digest.update(repr(list(prompt_ids[end - self._block : end])).encode())
            yield digest.digest()


def choose_home(loads: Mapping[str, int], known: str | None, slack: int) -> str:
    """The home for a response: the replica that knows its prompt's prefix, unless it has more than ``slack``
    lanes more than the least loaded one; else that one."""
    least = min(loads, key=lambda name: (loads[name], name))
    if known is not None and known in loads and loads[known] <= loads[least] + slack:
        return known
    return least
