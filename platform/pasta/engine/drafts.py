"""Drafts: tokens that may follow, fed beside the next token to be checked in the same forward.

Row i of a lane's logits chooses the token after i drafts as it would be chosen without them. So a draft changes no
token: it is emitted if it is what is chosen, else hidden.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import torch
from torch import Tensor

from pasta.engine.choosing import Guesser, Lane, Row
from pasta.engine.heads import Guess, HeadInput, HeadRunner
from pasta.engine.ngrams import CONTEXTS
from pasta.engine.request import EngineConfig
from pasta.engine.runner import Runner
from pasta.engine.slot import Slot
from pasta.engine.step_cost import DECAY, StepCost, Worth, least_lately
from pasta.engine.transfer import Stopwatch, to_device
from pasta.interpreter import Constraint, Feed, Interpreter, Mode, Thread, forced_token, supposed

#: The guesser of tokens that spell what a structured answer's grammar leaves no choice about.
SPELLED = 0


class Place(NamedTuple):
    """The place of a lane's draft: the slot, the fed token behind which it goes, and its thread."""

    number: int
    at: int
    slot: Slot
    thread: Thread


@dataclass(slots=True)
class Drafted:
    """A lane's draft: for each of its tokens what guessed it (``None``: the grammar), and the odds that it and those
    before it are right. ``allowed`` is what may follow each of its tokens, if they go through a promise."""

    place: Place
    tokens: list[int]
    guessers: list[int | None]
    odds: list[float]
    allowed: list[Constraint] | None = None


class Drafter:
    """Adds drafts to what an engine feeds: as many as pay by the measured cost of rows and by how many were right.

    A lane's draft is looked up (``Ngrams``), spells what a structured answer's grammar leaves no choice about, or is
    guessed by the model's draft heads (``HeadRunner``), whichever is likelier to be right. A *guesser* is a length of
    looked-up context, ``SPELLED``, or the heads when they were so sure of a token.

    On a CPU the heads guess for the lanes that draft, when they do. Elsewhere the host would wait for them: there they
    guess in the step before, after every row's token, and what they guess comes back with the tokens.
    """

    def __init__(self, config: EngineConfig, runner: Runner, heads: HeadRunner | None) -> None:
        self._most, self._runner = config.drafts, runner
        self._heads = heads if config.draft_heads else None
        self.cost = StepCost()
        #: Seconds that guesses for so many rows cost, and seconds of this step's guesses.
        self._guess_costs: dict[int, float] = {}
        self._guess_s = 0.0
        #: Seconds of the last forward in which the heads guessed for the next step, and the share that guessing took.
        self.guessed_s = self._ahead_s = 0.0
        self._watch: Stopwatch | None = None
        #: The worth of drafts in this step; ``None`` where none may pay.
        self._worth_here: Worth | None = Worth()
        self._rows_guessed = 0
        #: What guesses are worth, and all drafts of a step by the bits of its number of lanes; and the seconds that
        #: finding drafts for so many lanes takes, and those that this step's will save.
        self._guesses_worth = Worth()
        self._worth: defaultdict[int, Worth] = defaultdict(Worth)
        self._finding_costs: dict[int, float] = {}
        self._saves_s = 0.0
        # Share of tokens that were right, by guesser: the length of a context, or -1 - tenths of the heads' own odds.
        self._prior = dict.fromkeys(CONTEXTS, 0.6) | {-1 - tenth: (tenth + 0.5) / 10 for tenth in range(10)}
        self._prior[SPELLED] = 0.95
        self._right = dict(self._prior)
        self._fed: dict[tuple[int, int], Drafted] = {}
        #: Of this step's drafts that go through a promise, by slot and thread: what is allowed after each token.
        self.allowed: dict[tuple[int, int], list[Constraint]] = {}
        self.num_drafted = self.num_accepted = 0

    def add(self, slots: Mapping[int, Slot], feeds: dict[int, list[Feed]], numbers: range) -> None:
        """Put drafts behind the tokens in ``feeds`` that choose a thread's next one; the forward has the slots of these
        ``numbers``."""
        self._fed.clear()
        self._guess_s = 0.0
        self.allowed.clear()
        lanes = sum(feed.wants_logits for own in feeds.values() for feed in own)
        may_pay = lanes > 0 and self._may_pay(feeds, numbers)
        self._worth_here = worth = self._worth[lanes.bit_length()] if may_pay else None
        if worth is None or not worth.tries():
            return
        begun = time.perf_counter()
        found = self._found(slots, feeds)
        counts = self._pays(found, feeds, numbers)
        if self.cost.weight:  # else costs are in no seconds yet
            spent = least_lately(self._finding_costs, lanes, time.perf_counter() - begun) + self._ahead_s
            worth.learn((self._saves_s - spent) / self.cost.at(lanes))
        for drafted, count in zip(reversed(found), reversed(counts), strict=True):
            if count:
                number, at, t = drafted.place.number, drafted.place.at, drafted.place.thread
                feeds[number][at + 1 : at + 1] = [
                    Feed(t.id, token, t.next_position + n, t.segment, wants_logits=True)
                    for n, token in enumerate(drafted.tokens[:count])
                ]
                self._fed[number, t.id] = drafted
                if drafted.allowed is not None:
                    self.allowed[number, t.id] = drafted.allowed

    def reads(self, rows: Sequence[Row], hidden: Tensor | None) -> tuple[Tensor | None, Guesser | None]:
        """Reads a forward's states ``hidden`` for these ``rows``: keeps them for the next step, or has the heads guess
        from them at once."""
        self.guessed_s = self._ahead_s = 0.0
        if not self._runner.guesses_ahead:
            return hidden, None
        worth = self._worth_here  # drafts of the next step, most likely of as many lanes
        wanted = worth is not None and worth.tried_next and any(row.slot.ngrams is not None for row in rows)
        return None, self._ahead if wanted and self._guesses_worth.tries() else None

    def _ahead(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        self._watch, self._rows_guessed = Stopwatch(chosen.device), len(chosen)
        guessed = self._runner.guess(chosen)
        self._watch.stop()
        return guessed

    def remember(self, slot: Slot, lane: Lane) -> None:
        """Keep the state that chose the last token of a lane's thread, or what follows by the draft heads."""
        if lane.states is not None and slot.ngrams is not None:
            count, at = len(slot.interpreter.threads[lane.thread].tokens), lane.first + lane.at
            slot.states[lane.thread] = HeadInput(count, lane.states, at)

    def learn(self, lanes: Mapping[int, Sequence[Lane]]) -> None:
        """Update the cost of guesses, and how many drafts of each slot's lanes were right."""
        if self._watch is not None:
            self.guessed_s = self._watch.seconds()
            self._ahead_s = least_lately(self._guess_costs, self._rows_guessed, self.guessed_s)
            self._watch = None
        for number, own in lanes.items():
            for lane in own:
                if not lane.drafts:
                    continue
                self.num_drafted += len(lane.drafts)
                self.num_accepted += lane.at
                guessers = self._fed[number, lane.thread].guessers
                for guesser, right in zip(guessers, [1.0] * lane.at + [0.0] * len(lane.drafts), strict=False):
                    if guesser is not None:
                        self._right[guesser] += (1 - DECAY) * (right - self._right[guesser])
                    if not right:
                        break

    def _price(self, numbers: range) -> Callable[[Collection[int]], float]:
        """Seconds of a step of these slots, by how many lanes each slot feeds, with the guesses made for it."""
        fixed, row = self.cost.line()
        fixed += self._guess_s
        if len(numbers) == 1 and not self._runner.pads:
            return lambda lanes: fixed + row * sum(lanes)
        return lambda lanes: fixed + row * self._runner.num_rows(numbers, lanes)

    def _may_pay(self, feeds: Mapping[int, Sequence[Feed]], numbers: range) -> bool:
        """Whether drafts would pay if all of them were right."""
        fed = [*map(len, feeds.values())]
        if not self._most or min(fed) < max(fed) or len(numbers) > len(feeds):
            return self._most > 0  # some rows may be free: captured steps are padded
        lanes = sum(feed.wants_logits for rows in feeds.values() for feed in rows)
        price = self._price(numbers)
        rate = lanes / price(fed)
        # Where steps are not padded, each further row costs the same.
        more = range(1, self._most + 1 if self._runner.pads else 2)
        return any((lanes + n * len(fed)) / price([count + n for count in fed]) > rate for n in more)

    def _found(self, slots: Mapping[int, Slot], feeds: Mapping[int, Sequence[Feed]]) -> list[Drafted]:
        """The likelier draft of each lane that may have one, as far as there is room."""
        places = [
            Place(number, at, slot, slot.interpreter.threads[feed.thread])
            for number, slot in slots.items()
            if slot.may_draft()
            for at, feed in enumerate(feeds[number])
            if feed.wants_logits
        ]
        guessed = self._guessed(places)
        room = {number: self._runner.room(number) - len(feeds[number]) for number in slots}
        out = []
        for place in places:
            slot, t = place.slot, place.thread
            assert slot.ngrams is not None
            most = min(
                self._most,
                room[place.number],
                slot.interpreter.limits.max_positions - t.next_position - 1,
            )
            if most <= 0:
                continue
            drafts = []
            if t.mode == Mode.TEXT:
                looked_up, context = slot.ngrams.following(t, most)
                drafts.append(self._text(place, looked_up, [context] * len(looked_up)))
                if slot.matcher is not None:
                    spelled = slot.matcher.following(t.tokens)[:most]
                    drafts.append(self._text(place, spelled, [SPELLED] * len(spelled)))
            if (own := guessed.get((id(slot), t.id))) is not None:
                drafts.append(self._guess(place, *own, most))
            best = max(drafts, key=lambda d: sum(d.odds), default=None)
            if best is not None and best.tokens:
                out.append(best)
                room[place.number] -= len(best.tokens)
        return out

    def _guessed(self, places: Iterable[Place]) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
        """The draft heads' guesses for each thread: tokens, guessers. They guess from the last token that a known state
        chose; what the thread has emitted since, because it was forced to, they must have guessed too."""
        if self._heads is None:
            return {}
        self._guess_s = self._ahead_s
        if not self._runner.guesses_ahead and not self._guesses_worth.tries():
            return {}
        known = [
            (place.slot, place.thread, state)
            for place in places
            if (state := place.slot.states.get(place.thread.id)) is not None
            and len(place.thread.tokens) - state.num_tokens < self._heads.shape.depth
        ]
        found = {}
        guesses = self._guesses([(t, state) for _, t, state in known])
        for (slot, t, state), guess in zip(known, guesses, strict=True):
            since = t.tokens[state.num_tokens :]
            if guess.token == t.tokens[state.num_tokens - 1] and guess.following[: len(since)] == since:
                odds = guess.odds[len(since) :]
                following = guess.following[len(since) :]
                found[id(slot), t.id] = following, [-1 - _tenths(p) for p in odds]
        return found

    def _guesses(self, known: Sequence[tuple[Thread, HeadInput]]) -> list[Guess]:
        """What follows each thread's given token: guessed now from the state that chose it, or guessed already."""
        made = [state.rows[state.at] for _, state in known if not isinstance(state.rows, Tensor)]
        if self._heads is None or len(made) == len(known):
            return made
        begun = time.perf_counter()
        at = [state.at for _, state in known]
        rows = known[0][1].rows
        if isinstance(rows, Tensor) and all(state.rows is rows for _, state in known):  # all of one forward
            hidden = rows.index_select(0, to_device(torch.tensor(at), rows.device))
        else:
            hidden = torch.stack(
                [state.rows[state.at] for _, state in known if isinstance(state.rows, Tensor)]
            )
        last = [t.tokens[state.num_tokens - 1] for t, state in known]
        found = self._heads.guess(hidden, to_device(torch.tensor(last), hidden.device))
        self._guess_s = least_lately(self._guess_costs, len(known), time.perf_counter() - begun)
        return [Guess(*own) for own in zip(last, *found, strict=True)]

    def _text(self, place: Place, tokens: list[int], guessers: list[int]) -> Drafted:
        """A draft up to the first tag in it, or the first token that the tokenizer lacks."""
        text = place.slot.interpreter.grammar.text_mask
        ends = (n for n, token in enumerate(tokens) if token >= len(text) or not text[token])
        stop = next(ends, len(tokens))
        return Drafted(place, tokens[:stop], [*guessers[:stop]], self._odds(guessers[:stop]))

    def _guess(self, place: Place, tokens: list[int], guessers: list[int], most: int) -> Drafted:
        """A draft that may go through a promise, to its end: in it what the grammar forces needs no guess."""
        slot, t = place.slot, place.thread
        promise = slot.interpreter.grammar.control.promise
        if t.mode == Mode.TEXT and promise not in tokens:
            return self._text(place, tokens[:most], guessers)
        if slot.visible is not None:  # penalties know text only
            return self._text(place, tokens[:most] if t.mode == Mode.TEXT else [], guessers)
        found: list[int] = []
        who: list[int | None] = []
        allowed: list[Constraint] = []
        for token, guesser, following in _through_promise(
            slot.interpreter, t.id, zip(tokens, guessers, strict=False)
        ):
            if len(found) == most:
                break
            found.append(token)
            who.append(guesser)
            allowed.append(following if slot.forced is None else slot.allowed(t.id))
        return Drafted(place, found, who, self._odds(who), allowed)

    def _odds(self, guessers: Iterable[int | None]) -> list[float]:
        """How likely it is that all tokens so far are right."""
        return list(
            accumulate((1.0 if guesser is None else self._right[guesser] for guesser in guessers), mul)
        )

    def _pays(
        self, found: Sequence[Drafted], feeds: Mapping[int, Sequence[Feed]], numbers: range
    ) -> list[int]:
        """How many tokens of each draft give the most tokens a second, all lanes together: the likeliest first."""
        counts = [0] * len(found)
        best = counts.copy()
        rows = {number: len(own) for number, own in feeds.items()}
        tokens = float(sum(feed.wants_logits for own in feeds.values() for feed in own))
        price = self._price(numbers)
        before = cheapest = price(rows.values())
        lanes, rate = tokens, tokens / before
        for minus, n, _ in sorted((-p, n, k) for n, d in enumerate(found) for k, p in enumerate(d.odds)):
            counts[n] += 1
            rows[found[n].place.number] += 1
            tokens -= minus
            seconds = price(rows.values())
            if tokens / seconds > rate:
                best, rate, cheapest = counts.copy(), tokens / seconds, seconds
            elif len(numbers) == 1 and not self._runner.pads:
                break  # tokens after it are less likely, and cost as much
        if found and not any(best):
            # Only drafts that are tried can show that they pay again.
            for guesser, prior in self._prior.items():
                self._right[guesser] += 0.002 * (prior - self._right[guesser])
        self._weigh(found, best, lanes, before - self._guess_s, cheapest - before)
        return best

    def _weigh(
        self, found: Sequence[Drafted], counts: Sequence[int], lanes: float, step_s: float, more_s: float
    ) -> None:
        """Learn what the drafts of this step will have saved, and the guesses among them: it takes ``step_s`` without
        drafts and so much more with them."""
        gains = [sum(d.odds[:count]) for d, count in zip(found, counts, strict=True)]
        token_s = step_s / lanes
        self._saves_s = sum(gains) * token_s - more_s
        if not self._guess_s:
            return
        of_heads = sum(
            gain for d, gain in zip(found, gains, strict=True) if gain and min(g or 0 for g in d.guessers) < 0
        )
        share = of_heads / sum(gains) if of_heads else 0.0
        self._guesses_worth.learn((of_heads * token_s - share * more_s - self._guess_s) / step_s)


def _tenths(odds: float) -> int:
    """The tenths of odds, at most 9. Of no number none: heads may be told of states that are too large for them."""
    return min(int(10 * odds), 9) if odds > 0 else 0


def _through_promise(
    interpreter: Interpreter, thread: int, guesses: Iterator[tuple[int, int]]
) -> Iterator[tuple[int, int | None, Constraint]]:
    """The tokens that a thread emits next if the guesses are right, up to the end of a promise: each with what guessed
    it, ``None`` if the grammar forces it, and what is allowed after it.

    Behind a promise's end tokens have other positions, and another segment.
    """
    ahead, grammar = supposed(interpreter, thread), interpreter.grammar
    # Tokens that end a thread, or make it wait, concern other threads.
    ends = {grammar.control.sync, grammar.control.async_close, *grammar.eos_ids}
    while True:
        guess = next(guesses, None)
        if (forced := forced_token(ahead, thread)) is not None:
            if guess is not None and guess[0] != forced:
                guesses = iter(())  # a wrong guess: the rest depends on it
            token, guesser = forced, None
        elif guess is None or guess[0] in ends or not ahead.allowed(thread).permits(guess[0], grammar):
            return
        else:
            token, guesser = guess
        ahead.emit(thread, token)
        yield token, guesser, ahead.allowed(thread)
        if token == grammar.control.close:
            return
