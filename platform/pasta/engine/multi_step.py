"""Multi-step decoding: several steps run one after another before the engine follows what their tokens mean.

What Python does for a step takes about as long as the forward of a model of a few million parameters. While every
thread writes text, or the topic of a promise, the next step is the last one with its tokens: what else the engine does
waits for some steps, and is done for all of them at once. The first token that is neither, a tag or an end, ends them.
So each token is chosen in the step in which it would be chosen anyway.
"""

import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple, cast

from pasta.engine.choosing import Chooser, Lane, Moment, later_row
from pasta.engine.request import Event, TokenEvent
from pasta.engine.runner import Runner
from pasta.engine.slot import Slot
from pasta.engine.step_cost import least_lately
from pasta.interpreter import Feed, Mode, Path, emit_text, may_emit_text
from pasta.sizes import MOST_SECONDS_TOGETHER, MOST_STEPS_TOGETHER


class Plan(NamedTuple):
    """How many steps may run together, and what the second one feeds if all threads go on as they are: tokens missing,
    positions one less."""

    num_steps: int
    following: dict[int, list[Feed]]


class MultiStep:
    """Runs several steps together where that changes no token."""

    def __init__(self, runner: Runner, chooser: Chooser) -> None:
        self._runner, self._chooser = runner, chooser
        #: Seconds of a step among several, by its number of rows.
        self._costs: dict[int, float] = {}

    def plan(
        self, slots: Mapping[int, Slot], feeds: Mapping[int, Sequence[Feed]], step_s: float
    ) -> Plan | None:
        """The steps that may run together, beginning with the one that feeds these tokens; ``None`` if it runs alone,
        which takes ``step_s`` seconds."""
        following = self._following(slots, feeds)
        if following is None:
            return None
        rows = sum(map(len, following.values()))
        step_s = min(step_s, self._costs.get(rows, step_s))  # the first together took longer
        most = min(MOST_STEPS_TOGETHER, int(MOST_SECONDS_TOGETHER / step_s))
        for number, slot in slots.items():
            it, own = slot.interpreter, following[number]
            for feed in own:
                t = it.threads[feed.thread]
                most = min(most, it.limits.max_positions - t.next_position - 1)
                if t.is_chunk:
                    most = min(most, it.limits.max_chunk_tokens - len(t.tokens) - 1)
                if t.mode == Mode.TOPIC:
                    most = min(most, it.limits.max_topic_tokens - len(t.tokens) + t.topic_start)
            room = self._runner.room(number) - len(feeds[number])
            most = min(most, it.tokens_left // len(own), 1 + room // len(own))
        return Plan(most, following) if most > 1 else None

    @staticmethod
    def _following(
        slots: Mapping[int, Slot], feeds: Mapping[int, Sequence[Feed]]
    ) -> dict[int, list[Feed]] | None:
        """``Plan.following``; ``None`` where Python has to follow each token."""
        found: dict[int, list[Feed]] = {}
        for number, slot in slots.items():
            if slot.waiting or slot.shares or slot.visible or slot.matcher:
                return None
            if slot.request.logprobs is not None:
                return None
            own: dict[int, Feed] = {}
            for feed in feeds[number]:
                if slot.scored(feed):
                    return None
                if feed.wants_logits:
                    t = slot.interpreter.threads[feed.thread]
                    if t.mode not in (Mode.TEXT, Mode.TOPIC) or t.id in own:
                        return None
                    own[t.id] = Feed(t.id, 0, t.next_position - 1, t.segment, True)
            if not own:
                return None
            found[number] = [*own.values()]
        return found

    def forward(
        self,
        numbers: range,
        slots: Mapping[int, Slot],
        feeds: Mapping[int, Sequence[Feed]],
        plan: Plan,
        first_step: int,
    ) -> tuple[dict[int, list[Lane]], int]:
        """Run the steps of a plan up to the first tag; the first one has this number. Returns each slot's lanes, as if
        the later tokens of each were drafts of the first, and how many steps have run."""
        rows = self._chooser.rows(slots, feeds, {})
        later_rows = [later_row(row) for row in rows]
        sees = {number: slot.interpreter.sees for number, slot in slots.items()}
        begun = time.perf_counter()
        later = self._chooser.later(rows, later_rows, plan.following, plan.num_steps)
        done = self._runner.steps(numbers, feeds, sees, self._chooser.choices(rows), later)
        steps = done.tokens.shape[1]
        step_s = (time.perf_counter() - begun) / steps
        least_lately(self._costs, len(rows), step_s)
        moments = [Moment(begun + (step + 1) * step_s, first_step + step) for step in range(steps)]
        # A lane's rows beside each other, as drafts have them.
        logits, states = done.logits.flatten(0, 1), None if done.states is None else done.states.flatten(0, 1)
        tokens = [[None if token < 0 else token for token in own] for own in done.tokens.tolist()]
        no_logprobs = [None] * steps
        lanes: dict[int, list[Lane]] = {number: [] for number in slots}
        at = 0
        for number in slots:
            for own in range(len(plan.following[number])):
                chosen, drafts = tokens[at], cast(list[int], tokens[at][:-1])
                places = [taken[number][own] for taken in done.places[1:]]
                lanes[number].append(
                    Lane(
                        [rows[at], *[later_rows[at]] * (steps - 1)],
                        logits,
                        chosen,
                        no_logprobs,
                        states,
                        drafts,
                        places,
                        at * steps,
                        moments=moments,
                    )
                )
                at += 1
        return lanes, steps


def emit_fed_text(slot: Slot, lanes: Sequence[Lane]) -> list[Event]:
    """Report all tokens at once that lanes have chosen in steps together, but for the last of each; returns their
    events. None where one of them is no text, or may change what others may be: then each has to be looked at."""
    it, count = slot.interpreter, len(lanes[0].drafts)
    if not count or slot.forced is not None or slot.stops or not slot.first_token_at:
        return []
    if not may_emit_text(it, [lane.thread for lane in lanes], count, slot.held_open):
        return []
    turns: list[tuple[tuple[int, Path], int, Lane]] = []
    for lane in lanes:
        clock, place = slot.turn(lane.thread)
        turns += [((clock + at, place), at, lane) for at in range(count)]
        emit_text(it, lane.thread, lane.drafts, [now for now, _ in lane.moments[:count]])
        lane.at = count
    turns.sort(key=itemgetter(0))
    events: list[Event] = []
    for _, at, lane in turns:
        (now, step), thread, token = lane.moments[at], lane.thread, lane.drafts[at]
        path = it.threads[thread].path
        events.append(TokenEvent(slot.request.request_id, now, step, thread, token, path))
    return events
