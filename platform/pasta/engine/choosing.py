"""Chooses tokens: from the logits of a forward, the next token of each thread, and those after its drafts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pasta.engine.heads import Guess
from pasta.engine.penalties import Edit, adjusted
from pasta.engine.request import Logprobs
from pasta.engine.runner import Later
from pasta.engine.sampling import (
    NO_PROMISE,
    UNKNOWN,
    Choices,
    ConstraintTable,
    Scores,
    likeliest,
    log_probabilities,
    permit,
    sample,
    stream_key,
)
from pasta.engine.slot import Slot
from pasta.engine.transfer import fetch, to_device
from pasta.errors import UserError
from pasta.interpreter import Constraint, Feed, Mode, Thread
from pasta.lang import Codec


class NoToken(ArithmeticError):
    """A request's logits leave no token to choose: one is NaN, or none of the allowed ones is finite."""


class GrammarFailed(UserError):
    """The grammar that an answer follows allows no further token: it has reached a limit."""


#: A function that guesses the tokens after those chosen from the last N rows [N]. Returns tokens and odds [N, depth].
Guesser = Callable[[Tensor], tuple[Tensor, Tensor]]


class Moment(NamedTuple):
    """When a token was chosen: the time, and the number of the engine's step."""

    now: float
    step: int


class Row(NamedTuple):
    """A row of logits: for the token that ``thread`` emits after the tokens ``drafts``, under ``constraint``; or, where
    there is a ``prompt_token``, to tell how likely that is."""

    slot: Slot
    thread: int
    drafts: tuple[int, ...]
    constraint: Constraint
    prompt_token: int | None = None


@dataclass(slots=True)
class Lane:
    """A thread's rows of logits, and the token chosen from each, with its log-probabilities if they are wanted.

    Row ``i`` holds if the thread emits ``drafts[:i]`` first; ``places`` are where these are in the cache. ``at`` is the
    row of the next token: those before it have been emitted. Where there are draft heads, ``states`` are those that the
    logits were made of [N, H], for the heads to read, or what they have guessed already. Logits and states are those of
    all N rows of the forward, of which the lane's begin at ``first``. Rows of several steps have their own ``moments``.
    """

    rows: Sequence[Row]
    logits: Tensor  # [N, V]
    tokens: Sequence[int | None]
    logprobs: Sequence[Logprobs | None]
    states: Tensor | Sequence[Guess] | None = None
    drafts: Sequence[int] = ()
    places: Sequence[int] = ()
    first: int = 0
    at: int = 0
    moments: Sequence[Moment] = ()

    @property
    def thread(self) -> int:
        """The thread that the rows are for."""
        return self.rows[0].thread

    def drafted(self, token: int) -> bool:
        """Whether ``token`` is the next draft: it has been fed already, and the next row follows it."""
        return self.at < len(self.drafts) and self.drafts[self.at] == token

    @property
    def rejected(self) -> Sequence[int]:
        """Places of the drafts that were not emitted."""
        return self.places[self.at :]

    def kept(self) -> "Lane":
        """The next token's row alone, to be emitted in a later step; the forward's other logits can be freed."""
        at, own = slice(self.at, self.at + 1), slice(self.first + self.at, self.first + self.at + 1)
        row = self.rows[self.at]._replace(drafts=())
        states = None if self.states is None else self.states[own]
        if isinstance(states, Tensor):
            states = states.clone()
        return Lane([row], self.logits[own].clone(), self.tokens[at], self.logprobs[at], states)


class Chooser:
    """Chooses tokens by each request's own parameters, random stream and constraints."""

    def __init__(self, table: ConstraintTable, codec: Codec) -> None:
        self._table = table
        self._ends = tuple(codec.grammar.eos_ids)
        self._promise = codec.control.promise

    @staticmethod
    def rows(
        slots: Mapping[int, Slot],
        feeds: Mapping[int, Sequence[Feed]],
        allowed: Mapping[tuple[int, int], Sequence[Constraint]],
    ) -> list[Row]:
        """The rows of logits that the fed tokens want, in feeding order.

        A thread's rows after its first are those of its drafts, fed right behind one another: under the constraint of
        the first, or what is ``allowed`` after each of them, by slot and thread.
        """
        rows: list[Row] = []
        for number, slot in slots.items():
            last = -1
            for feed in feeds[number]:
                if not feed.wants_logits:
                    continue
                if slot.scored(feed):  # a row of the prompt: it chooses nothing
                    following = slot.interpreter.prompt[feed.position + 1]
                    rows.append(Row(slot, feed.thread, (), slot.allowed(feed.thread), following))
                    continue
                if feed.thread == last:
                    drafts = (*rows[-1].drafts, feed.token)
                    after = allowed.get((number, feed.thread))
                    constraint = rows[-1].constraint if after is None else after[len(drafts) - 1]
                    rows.append(Row(slot, feed.thread, drafts, constraint))
                else:
                    rows.append(Row(slot, feed.thread, (), slot.allowed(feed.thread)))
                last = feed.thread
        return rows

    def choices(self, rows: Sequence[Row]) -> Choices:
        """What the tokens of these rows are chosen by: constraints, parameters and stream keys."""
        params = [row.slot.request.sampling for row in rows]
        keys = [key for row in rows for key in _stream_keys(row, 1)]
        return Choices.of(self._table.rows([row.constraint for row in rows]), params, keys)

    def lanes(
        self,
        slots: Mapping[int, Slot],
        feeds: Mapping[int, Sequence[Feed]],
        rows: Sequence[Row],
        scores: Scores,
        places: Mapping[int, Sequence[int]],
        hidden: Tensor | None = None,
        guesser: Guesser | None = None,
    ) -> dict[int, list[Lane]]:
        """Choose the next tokens of each slot's threads from the ``scores`` of ``rows``, those of ``feeds``, and tell
        the slots how likely their prompts are; ``places`` are where the fed tokens are in each slot's cache.

        The lanes keep the rows' states ``hidden``, or what ``guesser`` guesses after their tokens.
        """
        count = sum(row.prompt_token is not None for row in rows)  # these come first
        chosen = self._chosen(rows[count:], scores.after(count) if count else scores)
        read = _read(rows, scores.logits, chosen, guesser)
        for row, told in zip(rows[:count], read.logprobs, strict=False):
            assert told is not None
            row.slot.prompt_logprobs.append(told)
        logits, tokens, logprobs = scores.logits, read.tokens, read.logprobs
        if count:
            rows, logits, tokens, logprobs = rows[count:], logits[count:], tokens[count:], logprobs[count:]
            hidden = None if hidden is None else hidden[count:]
        states = read.guesses if hidden is None else hidden
        ends: list[tuple[int, list[int], list[int]]] = []  # of each lane: slot, drafts, their places
        for number, slot in slots.items():
            last = -1
            for feed, place in zip(feeds[number], places[number], strict=True):
                if not feed.wants_logits or slot.scored(feed):
                    continue
                if feed.thread == last:
                    ends[-1][1].append(feed.token)
                    ends[-1][2].append(place)
                else:
                    ends.append((number, [], []))
                last = feed.thread
        lanes: dict[int, list[Lane]] = {number: [] for number in slots}
        start = 0
        for number, drafts, drafts_at in ends:
            own = slice(start, start + 1 + len(drafts))
            lanes[number].append(
                Lane(rows[own], logits, tokens[own], logprobs[own], states, drafts, drafts_at, start)
            )
            start = own.stop
        return lanes

    def later(
        self, rows: Sequence[Row], later_rows: Sequence[Row], feeds: Mapping[int, Sequence[Feed]], steps: int
    ) -> Later:
        """What the tokens of so many steps depend on, beside the ``choices`` of the first one's ``rows``; the others
        have ``later_rows``, and the second one feeds ``feeds``."""
        keys = np.array([_stream_keys(row, steps)[1:] for row in rows], dtype=np.int64).T
        known = np.array([_forced(row, steps) for row in rows]).T
        is_replay = any(row.slot.forced is not None for row in rows)
        modes = [int(thread.mode == Mode.TOPIC) for thread in _threads(rows)]
        return Later(
            feeds,
            self.choices(later_rows),
            np.ascontiguousarray(keys),
            known if is_replay else known[:0],
            np.array(modes),
        )

    def lane(self, slot: Slot, thread: int, logits: Tensor) -> Lane:
        """Choose the next token of one thread from its row of ``logits`` [1, V]."""
        rows = [Row(slot, thread, (), slot.allowed(thread))]
        read = self.choose(rows, logits)
        return Lane(rows, logits, read.tokens, read.logprobs)

    def next_token(self, lane: Lane) -> tuple[int, Logprobs | None]:
        """Return a lane's next token: chosen again if what is allowed has changed. Raises ``NoToken``,
        ``GrammarFailed``."""
        row, token, logprobs = lane.rows[lane.at], lane.tokens[lane.at], lane.logprobs[lane.at]
        allowed = row.slot.allowed(row.thread)
        if allowed is not row.constraint and allowed != row.constraint:
            at = lane.first + lane.at
            read = self.choose([row._replace(drafts=(), constraint=allowed)], lane.logits[at : at + 1])
            (token,), (logprobs,) = read.tokens, read.logprobs
        if token is None:
            matcher = row.slot.matcher
            if matcher and matcher.error:
                raise GrammarFailed(matcher.error)
            raise NoToken("the logits are not finite numbers")
        return token, logprobs

    def choose(self, rows: Sequence[Row], logits: Tensor) -> "Read":
        """Choose a token for each row from its logits [N, V]."""
        choices = self.choices(rows)
        numbers = to_device(torch.from_numpy(choices.numbers), logits.device)
        permitted = permit(
            logits, numbers, self._table.forbidden, self._promise if choices.biased else NO_PROMISE
        )
        return _read(rows, logits, self._chosen(rows, Scores(logits, likeliest(permitted), numbers, choices)))

    def _chosen(self, rows: Sequence[Row], scores: Scores) -> Tensor:
        """Return the chosen token of each row [N], -1 where there is none."""
        choices, tokens = scores.choices, scores.likeliest
        if not rows:
            return tokens
        masks = self._masks(rows)
        edits = self._edits(rows, masks)
        if choices.sampled or edits or masks:
            logits = adjusted(scores.logits, edits) if edits else scores.logits
            biased = self._promise if choices.biased else NO_PROMISE
            permitted = permit(logits, scores.numbers, self._table.forbidden, biased)
            for at, mask in masks.items():
                permitted[at, : len(mask)].masked_fill_(
                    to_device(~torch.from_numpy(mask), logits.device), float("-inf")
                )
            if edits or masks:
                tokens = likeliest(permitted)
            if choices.sampled:
                tokens = _sampled(permitted, tokens, scores)
        if any(row.slot.forced is not None for row in rows):
            forced = to_device(torch.tensor([_forced(row, 1)[0] for row in rows]), tokens.device)
            tokens = torch.where(forced == UNKNOWN, tokens, forced)
        return tokens

    @staticmethod
    def _masks(rows: Sequence[Row]) -> dict[int, npt.NDArray[np.bool_]]:
        """For each structured answer's row, by its number: the tokens [vocab] that its grammar allows."""
        found = {}
        for at, (row, thread) in enumerate(zip(rows, _threads(rows), strict=True)):
            if row.slot.matcher is None or row.constraint.base != "text":
                continue
            if (mask := row.slot.matcher.allowed(thread.tokens, row.drafts)) is not None:
                found[at] = mask
        return found

    def _edits(self, rows: Sequence[Row], masks: Mapping[int, npt.NDArray[np.bool_]]) -> list[Edit]:
        """The changes that requests ask for in logits of text; ``masks`` are what their grammars allow."""
        edits = []
        for at, row in enumerate(rows):
            visible = row.slot.visible
            if visible is None or row.constraint.base != "text":
                continue
            params, seen = row.slot.request.sampling, visible.seen(row.thread)
            early = len(seen) + len(row.drafts) < params.min_tokens
            barred = self._ends if early or params.ignore_eos else ()
            if early:
                barred = (*barred, *params.stop_token_ids)
            if barred and at in masks and set(np.flatnonzero(masks[at])) <= set(barred):
                barred = ()  # the grammar allows nothing else
            edits.append(Edit(at, params, visible.prompt, seen, row.drafts, barred))
        return edits


def _sampled(permitted: Tensor, likeliest: Tensor, scores: Scores) -> Tensor:
    """``sample`` for the rows with a temperature only: it would compute noise for the others in vain."""
    own = np.flatnonzero(scores.choices.temperatures > 0)
    if len(own) == len(likeliest):
        return sample(permitted, likeliest, scores.numbers, cut=scores.choices.cut)
    at = to_device(torch.from_numpy(own), permitted.device)
    found = sample(
        permitted.index_select(0, at),
        likeliest.index_select(0, at),
        scores.numbers.index_select(1, at),
        cut=scores.choices.cut,
    )
    return likeliest.index_copy(0, at, found)


def later_row(row: Row) -> Row:
    """The row of the tokens after a row's token that go on with the text, or with the topic, of its thread."""
    return row._replace(constraint=row.slot.allowed_later(row.thread))


def _threads(rows: Iterable[Row]) -> list[Thread]:
    return [row.slot.interpreter.threads[row.thread] for row in rows]


def _forced(row: Row, steps: int) -> list[int]:
    """The next tokens of a replay, -1 behind its end."""
    if row.slot.forced is None:
        return [UNKNOWN] * steps
    thread, at = _next(row)
    following = row.slot.forced[thread.path][at : at + steps]
    return [*following, *[-1] * (steps - len(following))]


def _stream_keys(row: Row, steps: int) -> list[int]:
    """The keys of a row's next choices in its thread's random stream; 0 where nothing is sampled."""
    params = row.slot.request.sampling
    if params.temperature <= 0:
        return [0] * steps
    thread, at = _next(row)
    return [stream_key(params.seed, thread.path, step) for step in range(at, at + steps)]


def _next(row: Row) -> tuple[Thread, int]:
    """The thread that emits a row's token, and how many it will have emitted before."""
    thread = row.slot.interpreter.threads[row.thread]
    return thread, len(thread.tokens) + len(row.drafts)


class Read(NamedTuple):
    """The tokens chosen from N rows, copied to the host: ``None`` where there is none. With their log-probabilities
    where the request wants them, and with what draft heads guess after them, if they were asked."""

    tokens: list[int | None]
    logprobs: list[Logprobs | None]
    guesses: list[Guess] | None = None


def _read(rows: Sequence[Row], logits: Tensor, chosen: Tensor, guesser: Guesser | None = None) -> Read:
    """Copy to the host what it needs of the rows with these ``logits`` [N, V]. The last M rows, which score no prompt,
    have ``chosen`` tokens [M]."""
    if not rows:
        return Read([], [])
    told = [chosen]
    guesses = len(chosen) > 0 and guesser is not None
    if guesser is not None and guesses:
        told += guesser(chosen)
    requests = [(row.slot.request, row.prompt_token) for row in rows]
    counts = [request.logprobs if token is None else request.prompt_logprobs for request, token in requests]
    wanted = [at for at, count in enumerate(counts) if count is not None]
    scored = [token for _, token in requests if token is not None]
    if wanted:
        tokens = chosen
        if scored:
            tokens = torch.cat([to_device(torch.tensor(scored), logits.device), chosen])
        if len(wanted) < len(rows):
            own = to_device(torch.tensor(wanted), logits.device)
            logits, tokens = logits.index_select(0, own), tokens.index_select(0, own)
        told += log_probabilities(logits, tokens, max(count for count in counts if count is not None))
    found, *more = fetch(*told)
    all_tokens: list[int | None] = [*scored, *(None if token < 0 else token for token in found)]
    logprobs: list[Logprobs | None] = [None] * len(rows)
    if wanted:
        for at, own, ids, values in zip(wanted, *more[-3:], strict=True):
            if all_tokens[at] is not None:
                logprobs[at] = Logprobs(own, tuple(zip(ids, values, strict=True))[: counts[at]])
    ahead = [Guess(*own) for own in zip(found, *more[:2], strict=True)] if guesses else None
    return Read(all_tokens, logprobs, ahead)
