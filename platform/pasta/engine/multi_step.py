"""Multi-step decoding: several steps run one after another before the engine follows what their tokens mean.

What Python does for a step takes about as long as the forward of a model of a few million parameters. While every
thread writes text, the next step is the last one with its tokens: what else the engine does waits for some steps, and
is done for all of them at once. The first token that is no text, a tag or an end, ends them. So each token is chosen in
the step in which it would be chosen anyway.
"""

import time
from collections.abc import Mapping, Sequence
from typing import cast

from pasta.engine.choosing import Chooser, Lane, Moment
from pasta.engine.runner import Runner
from pasta.engine.slot import Slot
from pasta.engine.step_cost import least_lately
from pasta.interpreter import Feed, Mode
from pasta.sizes import MOST_SECONDS_TOGETHER, MOST_STEPS_TOGETHER


class MultiStep:
    """Runs several steps together where that changes no token."""

    def __init__(self, runner: Runner, chooser: Chooser) -> None:
        self._runner, self._chooser = runner, chooser
        #: Seconds of a step among several, by its number of rows.
        self._costs: dict[int, float] = {}

    def count(
        self, numbers: range, slots: Mapping[int, Slot], feeds: Mapping[int, Sequence[Feed]], step_s: float
    ) -> int:
        """How many steps may run together, beginning with the one that feeds these tokens. One alone takes ``step_s``
        seconds."""
        lanes = [*map(len, feeds.values())]
        step_s = min(step_s, self._costs.get(sum(lanes), step_s))  # the first together took longer
        most = min(MOST_STEPS_TOGETHER, int(MOST_SECONDS_TOGETHER / step_s))
        if self._runner.num_rows(numbers, lanes) < len(numbers) * max(lanes):
            return 1  # steps that are flat cost less than the same steps together would
        for number, slot in slots.items():
            if most < 2 or slot.waiting or slot.shares or slot.visible or slot.matcher:
                return 1
            if slot.request.logprobs is not None:
                return 1
            it, own = slot.interpreter, feeds[number]
            last = -1
            for feed in own:
                t = it.threads[feed.thread]
                if t.mode != Mode.TEXT or not feed.wants_logits or feed.thread == last or slot.scored(feed):
                    return 1
                if (t.next_position, t.segment) != (feed.position + 1, feed.segment):
                    return 1  # the token after a tag or a chunk
                last = feed.thread
                most = min(most, it.limits.max_positions - t.next_position - 1)
                if t.is_chunk:
                    most = min(most, it.limits.max_chunk_tokens - len(t.tokens) - 1)
            most = min(most, it.tokens_left // len(own), self._runner.room(number) // len(own))
        return max(most, 1)

    def forward(
        self,
        numbers: range,
        slots: Mapping[int, Slot],
        feeds: Mapping[int, Sequence[Feed]],
        count: int,
        first_step: int,
    ) -> tuple[dict[int, list[Lane]], int]:
        """Run up to ``count`` steps, of which the first has this number; returns each slot's lanes, as if the later
        tokens of each were drafts of the first, and the number of steps."""
        rows = self._chooser.rows(slots, feeds, {})
        sees = {number: slot.interpreter.sees for number, slot in slots.items()}
        begun = time.perf_counter()
        done = self._runner.steps(
            numbers, feeds, sees, self._chooser.choices(rows), *self._chooser.later(rows, count)
        )
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
            for own in range(len(feeds[number])):
                chosen, drafts = tokens[at], cast(list[int], tokens[at][:-1])
                places = [taken[number][own] for taken in done.places[1:]]
                lanes[number].append(
                    Lane(
                        [rows[at]] * steps,
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
