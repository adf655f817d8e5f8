"""Drafts: tokens that may follow, fed beside the next token to be checked in the same forward.

Row i of a lane's logits chooses the token after i drafts as it would be chosen without them. So a draft changes no
token: it is emitted if it is what is chosen, else hidden.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pasta.engine.choosing import Lane
from pasta.engine.ngrams import CONTEXTS
from pasta.engine.request import EngineConfig
from pasta.engine.runner import Runner
from pasta.engine.slot import Slot
from pasta.interpreter import Feed, Mode

#: Weight of what a step or a draft has told at the next one.
_DECAY = 0.98


@dataclass(slots=True)
class StepCost:
    """What a forward costs by its rows: a line through the measured ones, of which older ones count less."""

    weight: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    rows_rows: float = 0.0
    rows_seconds: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """A forward of ``rows`` rows took so long."""
        if self.weight > 10 and seconds > 4 * self.at(rows):
            return  # something else ran
        for name, value in (
            ("weight", 1.0),
            ("rows", rows),
            ("seconds", seconds),
            ("rows_rows", rows * rows),
            ("rows_seconds", rows * seconds),
        ):
            setattr(self, name, _DECAY * getattr(self, name) + value)

    def at(self, rows: int) -> float:
        """Return the seconds of a forward of ``rows`` rows; before any was measured, in units of one row's."""
        if not self.weight:
            return 1.0 + 0.05 * rows
        rows_mean, mean = self.rows / self.weight, self.seconds / self.weight
        spread = self.rows_rows / self.weight - rows_mean**2
        # As many as if forwards that differ little had cost a twentieth more for each row.
        prior = 0.05 * mean / max(rows_mean, 1.0)
        together = self.rows_seconds / self.weight - rows_mean * mean
        slope = (together + 0.1 * prior) / (spread + 0.1)
        return mean + max(slope, 0.0) * (rows - rows_mean)


@dataclass(slots=True)
class Drafted:
    """A lane's draft: behind which of the slot's fed tokens it goes, and how long the context was that it followed."""

    number: int
    at: int
    tokens: list[int]
    context: int


class Drafter:
    """Adds drafts to what an engine feeds: as many as pay by the measured cost of rows and by how many were right."""

    def __init__(self, config: EngineConfig, runner: Runner) -> None:
        self._most, self._runner = config.drafts, runner
        self.cost = StepCost()
        self._right = dict.fromkeys(CONTEXTS, 0.6)
        self._context: dict[tuple[int, int], int] = {}
        self.num_drafted = self.num_accepted = 0

    def add(self, slots: Mapping[int, Slot], feeds: dict[int, list[Feed]], num_slots: int) -> None:
        """Put drafts behind the tokens in ``feeds`` that choose a thread's next one; the forward has ``num_slots``
        slots, each padded to the longest."""
        self._context.clear()
        found = [
            drafted for number, slot in slots.items() for drafted in self._found(number, slot, feeds[number])
        ]
        most = self._pays(found, feeds, num_slots) if found else 0
        if not most:
            return
        for drafted in reversed(found):
            slot, rows = slots[drafted.number], feeds[drafted.number]
            t = slot.interpreter.threads[rows[drafted.at].thread]
            own = [
                Feed(t.id, token, t.next_position + n, t.segment, wants_logits=True)
                for n, token in enumerate(drafted.tokens[:most])
            ]
            rows[drafted.at + 1 : drafted.at + 1] = own
            self._context[drafted.number, t.id] = drafted.context

    def learn(self, number: int, lanes: Iterable[Lane]) -> None:
        """See how many drafts of a slot's lanes were right."""
        for lane in lanes:
            if lane.drafts:
                context = self._context.get((number, lane.thread), CONTEXTS[-1])
                self.num_drafted += len(lane.drafts)
                self.num_accepted += lane.at
                for right in [1.0] * lane.at + [0.0] * (lane.at < len(lane.drafts)):
                    self._right[context] += (1 - _DECAY) * (right - self._right[context])

    def _found(self, number: int, slot: Slot, feeds: Sequence[Feed]) -> list[Drafted]:
        it = slot.interpreter
        if slot.ngrams is None or slot.shares or (slot.stops and len(it.live_threads) > 1):
            return []
        slot.ngrams.read(it.threads)
        room = self._runner.room(number) - len(feeds)
        out = []
        for at, feed in enumerate(feeds):
            t = it.threads[feed.thread]
            if not feed.wants_logits or t.mode != Mode.TEXT:
                continue
            most = min(self._most, room, it.limits.max_positions - t.next_position - 1)
            tokens, context = slot.ngrams.following(t, most) if most > 0 else ([], 0)
            text = it.grammar.text_mask
            stop = next((n for n, token in enumerate(tokens) if not text[token]), len(tokens))
            if stop:
                out.append(Drafted(number, at, tokens[:stop], context))
                room -= stop
        return out

    def _pays(self, found: Sequence[Drafted], feeds: Mapping[int, Sequence[Feed]], num_slots: int) -> int:
        """How many drafts of each lane give the most tokens a second, all lanes together."""
        lanes = sum(feed.wants_logits for rows in feeds.values() for feed in rows)
        longest = max(map(len, feeds.values()))
        best, rate, tokens = 0, lanes / self.cost.at(num_slots * longest), float(lanes)
        for most in range(1, self._most + 1):
            tokens += sum(self._right[d.context] ** most for d in found if len(d.tokens) >= most)
            rows = {number: len(own) for number, own in feeds.items()}
            for d in found:
                rows[d.number] += min(most, len(d.tokens))
            now = tokens / self.cost.at(num_slots * max(rows.values()))
            if now > rate:
                best, rate = most, now
        if not best:
            # Drafts that are not tried cannot show that they would pay again.
            for context in self._right:
                self._right[context] += 0.002 * (0.6 - self._right[context])
        return best
