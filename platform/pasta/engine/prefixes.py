"""Prefix reuse: prompts that begin alike are computed once.

What can be shared are the tokens that a request feeds first, in segment 0 at positions 0, 1, …: its prompt, and the
main thread's text before its first fork. When a request ends they stay in its slot until the slot is needed. A new
request takes over the longest match among them and the prompts of running requests, in place or by a copy.

A match is cut to whole prefill chunks, so that the rest is fed in the same chunks as without reuse: the keys and values
of a prompt are then equal to the last bit. (Text was fed token by token; it differs from a prefill as little as lanes
of another batch do.) With the project's kernels no row depends on those beside it, up to so many rows: then a match is
cut nowhere, and one shorter than a chunk is taken over too if a copy costs less than its rows of a forward, as both are
measured here. An identical prompt is taken over whole, however short, with the logits that choose the first token.

A request whose prompt begins like one that is being prefilled waits until that one has come as far.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pasta.engine.request import EngineConfig
from pasta.engine.runner import Runner
from pasta.engine.slot import Slot
from pasta.interpreter import Feed
from pasta.placement import prefix_digests

Tokens = npt.NDArray[np.int64]


@dataclass(eq=False, slots=True)
class Prefix:
    """The first tokens of a request: ``tokens`` [n] are those that its slot holds or, while it is prefilled, will hold.

    No logits are wanted of the first ``num_known`` tokens. ``logits`` [V] choose the token after the first
    ``num_prompt``, once those have been fed. This request waits for ``leader``, another request, until the leader holds
    ``awaited`` tokens. What is prefilled ``ahead`` is not counted.
    """

    salt: str
    tokens: Tokens
    num_known: int
    num_prompt: int
    logits: Tensor | None = None
    last_used: int = 0
    leader: "Prefix | None" = None
    awaited: int = 0
    digests: frozenset[bytes] = frozenset()
    ahead: bool = False

    @classmethod
    def of(cls, slot: Slot) -> "Prefix":
        """The prefix of a request of which nothing has been fed yet."""
        numbered = enumerate(slot.pending)
        feeds = [
            feed for _, feed in takewhile(lambda n: n[1].segment == 0 and n[1].position == n[0], numbered)
        ]
        if len(feeds) == len(slot.pending) and not feeds[-1].wants_logits:
            feeds.pop()  # all threads wait for chunks that are elsewhere: no logits choose a first token
        num_known = next((place for place, feed in enumerate(feeds) if feed.wants_logits), len(feeds))
        tokens = np.array([feed.token for feed in feeds], dtype=np.int64)
        return cls(slot.request.cache_salt, tokens, num_known, len(tokens))

    def common(self, other: "Prefix") -> int:
        """How many first tokens are the same; 0 of requests that may not share."""
        if self.salt != other.salt:
            return 0
        shorter = min(len(self.tokens), len(other.tokens))
        different = np.flatnonzero(self.tokens[:shorter] != other.tokens[:shorter])
        return int(different[0]) if len(different) else shorter

    def replaces(self, other: "Prefix") -> bool:
        """Whether it begins with the prompt of ``other``, as the same prompt and a conversation's next turn do: nobody
        is likely to need ``other`` as well. Prompts that only have a system prompt in common do not replace each
        other."""
        return self.common(other) >= (other.num_prompt or len(other.tokens))


@dataclass(slots=True)
class PrefixCounts:
    """Tokens of admitted prompts: ``looked_up``, of those ``hit`` (not computed again), of those ``copied``; and tokens
    computed ``ahead`` of a conversation's next turn."""

    looked_up: int = 0
    hit: int = 0
    copied: int = 0
    ahead: int = 0


class Prefixes:
    """The prefixes in an engine's slots: of running requests, and of requests that have ended."""

    def __init__(
        self, runner: Runner, config: EngineConfig, row_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        """``row_s``: the seconds that a row adds to a forward; 0 while nobody knows."""
        self.counts = PrefixCounts()
        #: The names of all prefixes in the slots (``pasta.placement.prefix_digests``). Another thread may read these
        #: and the counts.
        self.digests: frozenset[bytes] = frozenset()
        self._runner, self._num_slots = runner, config.num_slots
        self._chunk = runner.prefilled_at_once(config.prefill_chunk)
        self._grain = 1 if runner.whole_rows else self._chunk
        self._named_by = config.prefill_chunk  # Interpreters, which choose a Decoder, know this chunk only
        self.enabled = config.reuse_prefixes
        # By slot number; the running ones in the order in which they were admitted.
        self._running: dict[int, Prefix] = {}
        self._kept: dict[int, Prefix] = {}
        self._clock = 0
        self._row_s = row_s
        #: The seconds of copying a chunk, where a shorter match may be copied.
        self.copy_s = 0.0
        if self.enabled and self._grain == 1 and self._num_slots > 1:
            self.copy_s = self._timed_copy(min(self._chunk, config.slot_tokens))

    def admit(self, number: int, slot: Slot, *, ahead: bool = False) -> None:
        """Give a request the free slot ``number``, and to the slot what others hold of its prompt."""
        if not self.enabled:
            return
        own = self._running[number] = Prefix.of(slot)
        own.digests, own.ahead = self._named(own), ahead
        self.counts.looked_up += 0 if ahead else len(own.tokens)
        old = self._kept.pop(number, None)
        if ahead and old is not None and own.common(old) >= old.num_prompt:
            own.num_prompt, own.logits = old.num_prompt, old.logits  # the prompt may be sent again
        if old is not None:
            usable = self._usable(own, old, len(old.tokens), whole=len(slot.pending) == len(own.tokens))
            if ahead:  # whatever ends this too soon, the prompt stays whole
                usable = min(own.common(old), own.num_known)
            # The lowest free slot is taken, since a forward includes the slots between those that it feeds.
            if not own.replaces(old):
                self._move(number, old, own)
            self._runner.discard(number, usable, len(old.tokens))
            if usable:
                self._take_over(own, slot, number, usable, old)
        self._look_up(own, slot, number)
        self._publish()

    def holder(self, tokens: Sequence[int], salt: str) -> int | None:
        """The free slot that keeps all of ``tokens`` (at least one); ``None`` if there is none."""
        own = Prefix(salt, np.array(tokens, dtype=np.int64), 0, 0)
        return next((number for number, kept in self._kept.items() if own.common(kept) == len(tokens)), None)

    def advance(self, number: int, slot: Slot) -> Tensor | None:
        """Continue a waiting request if it need not wait longer. Returns the logits [V] that choose its first token if
        nothing is left to feed before."""
        own = self._running.get(number)
        if own is None:
            return None
        if own.leader is not None and not self._comes(own.leader, own.awaited):
            self._look_up(own, slot, number)
        return None if slot.pending else own.logits

    def waits(self, number: int) -> bool:
        """Whether a request waits for another one that computes the same tokens."""
        own = self._running.get(number)
        return own is not None and own.leader is not None

    def fed(self, number: int, feeds: Sequence[Feed], logits: Tensor) -> None:
        """Keep the last row of ``logits`` [N, V] if ``feeds`` end with the last token of a prompt."""
        own, last = self._running.get(number), feeds[-1]
        if (
            own is not None
            and last.wants_logits
            and last.segment == 0
            and last.position == own.num_prompt - 1
        ):
            own.logits = logits[-1].clone()

    def leave(self, number: int, *, failed: bool) -> None:
        """Free a slot. What it holds of a prompt and of text stays, unless the request has failed."""
        own = self._running.pop(number, None)
        if own is None or failed:
            self._runner.release(number)
            if own is not None:  # the tokens that it took over may be the cause
                self._forget([kept for kept, prefix in self._kept.items() if own.common(prefix)])
                self._publish()
            return
        own.tokens, own.leader = self._runner.leading_tokens(number), None
        if own.logits is None:
            own.num_prompt = 0
        self._runner.release(number, keep=len(own.tokens))
        for prefix in self._kept.values():
            if own.replaces(prefix):
                prefix.last_used = 0
        if len(own.tokens):
            self._use(own)
            self._kept[number] = own
            own.digests = self._named(own)
        self._publish()

    def forget(self) -> None:
        """Drop the tokens that ended requests have left."""
        self._forget(list(self._kept))
        self._publish()

    # -- matches ---------------------------------------------------------------------------------------

    def _look_up(self, own: Prefix, slot: Slot, number: int) -> None:
        """Copy the longest match; wait if a request admitted before will hold more of it."""
        held_by = {other: len(prefix.tokens) for other, prefix in self._kept.items()}
        for other, prefix in takewhile(lambda item: item[1] is not own, self._running.items()):
            held_by[other] = min(self._runner.num_tokens[other], len(prefix.tokens))
        start = self._runner.num_tokens[number]
        whole = start + len(slot.pending) == len(own.tokens)
        best, source = start, -1
        own.leader, own.awaited = None, 0
        for other, held in held_by.items():
            prefix = self._of(other)
            if (usable := self._usable(own, prefix, held, whole=whole)) > best:
                best, source = usable, other
            if held < len(prefix.tokens):
                later = self._usable(own, prefix, len(prefix.tokens), whole=whole, prefilled=True)
                if later > own.awaited:
                    own.leader, own.awaited = prefix, later
        if own.awaited <= best:
            own.leader = None
        if best > start:
            self._runner.copy(source, number, start, best)
            self.counts.copied += 0 if own.ahead else best - start
            self._take_over(own, slot, number, best, self._of(source))

    def _usable(self, own: Prefix, other: Prefix, held: int, *, whole: bool, prefilled: bool = False) -> int:
        """How many of its first tokens a request can take over from ``other``, which holds ``held`` tokens.

        ``whole``: it has no others to feed. ``prefilled``: the logits after the other one's prompt will be there.
        """
        common = min(own.common(other), held)
        same = common == len(own.tokens) == other.num_prompt and (prefilled or other.logits is not None)
        if same and whole:
            return common
        count = min(common, own.num_known) // self._grain * self._grain
        return count if count >= self._chunk or count * self._row_s() > self.copy_s else 0

    def _take_over(self, own: Prefix, slot: Slot, number: int, count: int, other: Prefix) -> None:
        """Begin a request with the first ``count`` tokens, which its slot now holds; ``other`` has computed them."""
        new = count - self._runner.num_tokens[number]
        self._runner.hold(number, count)
        slot.skip(new)
        self.counts.hit += 0 if own.ahead else new
        self._use(other)
        if not slot.pending:
            own.logits = other.logits

    def _comes(self, leader: Prefix, awaited: int) -> bool:
        """Whether a request is still being prefilled and holds fewer than so many tokens."""
        return any(
            prefix is leader and self._runner.num_tokens[number] < awaited
            for number, prefix in self._running.items()
        )

    def _of(self, number: int) -> Prefix:
        return self._kept[number] if number in self._kept else self._running[number]

    def _timed_copy(self, count: int) -> float:
        """Seconds to copy so many tokens of an unused slot: the least of a few copies."""
        times = []
        for _ in range(3):
            begun = time.perf_counter()
            self._runner.copy(0, 1, 0, count)
            times.append(time.perf_counter() - begun)
        return min(times)

    # -- room ------------------------------------------------------------------------------------------

    def _move(self, number: int, old: Prefix, own: Prefix) -> None:
        """Copy a prefix from the new request ``own``'s slot to the least recently used free slot, if that holds nothing
        newer, but not to the one of which the request can take most."""
        common = {other: own.common(prefix) for other, prefix in self._kept.items()}
        most = max(common, key=lambda other: common[other], default=number)
        # That all prompts of a chat template begin alike protects none of them.
        protected = most if common.get(most, 0) > own.common(old) else number
        last_used = {
            other: self._kept[other].last_used if other in self._kept else -1
            for other in range(self._num_slots)
            if other not in self._running and other != protected
        }
        target = min(last_used, key=lambda other: last_used[other], default=number)
        if target == number or last_used[target] > old.last_used:
            return
        if target in self._kept:
            self._forget([target])
        self._runner.copy(number, target, 0, len(old.tokens))
        self._kept[target] = old

    def _forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._runner.discard(number, 0, len(self._kept.pop(number).tokens))

    def _named(self, prefix: Prefix) -> frozenset[bytes]:
        """The names of what a prefix holds: whole chunks, and the prompt whose first token it can choose."""
        prompt = prefix_digests(prefix.tokens[: prefix.num_prompt].tolist(), self._named_by, prefix.salt)
        chunks = prefix_digests(prefix.tokens.tolist(), self._named_by, prefix.salt)
        return frozenset(
            [name for count, name in chunks if count % self._named_by == 0] + [name for _, name in prompt]
        )

    def _publish(self) -> None:
        prefixes = (*self._kept.values(), *self._running.values())
        self.digests = frozenset().union(*(prefix.digests for prefix in prefixes))

    def _use(self, prefix: Prefix) -> None:
        self._clock += 1
        prefix.last_used = self._clock
