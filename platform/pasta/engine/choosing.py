"""Chooses tokens: from the logits of a forward, the next token of each thread, and those after its drafts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pasta.engine.penalties import Edit, adjusted
from pasta.engine.request import Logprobs
from pasta.engine.sampling import (
    Choices,
    ConstraintTable,
    Scores,
    likeliest,
    log_probabilities,
    permit,
    sample,
    stream_key,
    to_device,
)
from pasta.engine.slot import Slot
from pasta.errors import UserError
from pasta.interpreter import Constraint, Feed, Thread
from pasta.lang import Codec


class NoToken(ArithmeticError):
    """A request's logits leave no token to choose: one is NaN, or none of the allowed ones is finite."""


class GrammarFailed(UserError):
    """The grammar that an answer follows allows no further token: it has reached a limit."""


class Row(NamedTuple):
    """A row of logits: for the token that ``thread`` emits after the tokens ``drafts``, under ``constraint``."""

    slot: Slot
    thread: int
    drafts: tuple[int, ...]
    constraint: Constraint


@dataclass(slots=True)
class Lane:
    """A thread's rows of logits, and the token chosen from each, with its log-probabilities if they are wanted.

    Row ``i`` holds if the thread emits ``drafts[:i]`` first; ``places`` are where these are in the cache. ``at`` is the
    row of the next token: those before it have been emitted. ``hidden`` are the states that the logits were made of,
    where there are draft heads to read them.
    """

    rows: Sequence[Row]
    logits: Tensor  # [1 + drafts, V]
    tokens: Sequence[int | None]
    logprobs: Sequence[Logprobs | None]
    hidden: Tensor | None = None  # [1 + drafts, H]
    drafts: Sequence[int] = ()
    places: Sequence[int] = ()
    at: int = 0

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
        at = slice(self.at, self.at + 1)
        row = self.rows[self.at]._replace(drafts=())
        hidden = None if self.hidden is None else self.hidden[at].clone()
        return Lane([row], self.logits[at].clone(), self.tokens[at], self.logprobs[at], hidden)


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
                if slot.scored(feed):  # it chooses nothing
                    rows.append(Row(slot, feed.thread, (), slot.allowed(feed.thread)))
                    continue
                if feed.thread == last:
                    drafts = (*rows[-1].drafts, feed.token)
                    following = allowed.get((number, feed.thread))
                    constraint = rows[-1].constraint if following is None else following[len(drafts) - 1]
                    rows.append(Row(slot, feed.thread, drafts, constraint))
                else:
                    rows.append(Row(slot, feed.thread, (), slot.allowed(feed.thread)))
                last = feed.thread
        return rows

    def choices(self, rows: Sequence[Row]) -> Choices:
        """What the tokens of these rows are chosen by."""
        params = [row.slot.request.sampling for row in rows]
        keys = [
            stream_key(p.seed, t.path, len(t.tokens) + len(row.drafts)) if p.temperature > 0 else 0
            for p, row, t in zip(params, rows, _threads(rows), strict=True)
        ]
        return Choices.of(self._table.rows([row.constraint for row in rows]), params, keys)

    def lanes(
        self,
        slots: Mapping[int, Slot],
        feeds: Mapping[int, Sequence[Feed]],
        rows: Sequence[Row],
        scores: Scores,
        hidden: Tensor | None,
        places: Mapping[int, Sequence[int]],
    ) -> dict[int, list[Lane]]:
        """Choose the next tokens of each slot's threads from the ``scores`` of ``rows``, those of ``feeds``; ``hidden``
        are the rows' states, ``places`` where the fed tokens are in each slot's cache."""
        tokens = self._chosen(rows, scores)
        logprobs = _logprobs(rows, scores.logits, tokens)
        ends: list[tuple[int, list[int], list[int]]] = []  # of each lane: slot, drafts, their places
        for number in slots:
            last = -1
            for feed, place in zip(feeds[number], places[number], strict=True):
                if not feed.wants_logits:
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
                Lane(
                    rows[own],
                    scores.logits[own],
                    tokens[own],
                    logprobs[own],
                    None if hidden is None else hidden[own],
                    drafts,
                    drafts_at,
                )
            )
            start = own.stop
        return lanes

    def lane(self, slot: Slot, thread: int, logits: Tensor) -> Lane:
        """Choose the next token of one thread from its row of ``logits`` [1, V]."""
        rows = [Row(slot, thread, (), slot.allowed(thread))]
        tokens = self.choose(rows, logits)
        return Lane(rows, logits, tokens, _logprobs(rows, logits, tokens))

    def next_token(self, lane: Lane) -> tuple[int, Logprobs | None]:
        """Return a lane's next token: chosen again if what is allowed has changed. Raises ``NoToken``,
        ``GrammarFailed``."""
        row, token, logprobs = lane.rows[lane.at], lane.tokens[lane.at], lane.logprobs[lane.at]
        allowed = row.slot.allowed(row.thread)
        if allowed != row.constraint:
            rows, logits = [row._replace(drafts=(), constraint=allowed)], lane.logits[lane.at : lane.at + 1]
            (token,) = tokens = self.choose(rows, logits)
            (logprobs,) = _logprobs(rows, logits, tokens)
        if token is None:
            follower = row.slot.follower
            if follower and follower.error:
                raise GrammarFailed(follower.error)
            raise NoToken("the logits are not finite numbers")
        return token, logprobs

    def choose(self, rows: Sequence[Row], logits: Tensor) -> list[int | None]:
        """Return a token for each row from its logits [N, V], ``None`` where there is none."""
        choices = self.choices(rows)
        numbers = to_device(torch.from_numpy(choices.numbers), logits.device)
        permitted = permit(logits, numbers, self._table.forbidden, self._promise if choices.biased else None)
        return self._chosen(rows, Scores(logits, likeliest(permitted), numbers, choices))

    def _chosen(self, rows: Sequence[Row], scores: Scores) -> list[int | None]:
        """Return the chosen token of each row, ``None`` where there is none."""
        if not rows:
            return []
        choices, tokens = scores.choices, scores.likeliest
        masks = self._masks(rows)
        edits = self._edits(rows, masks)
        if choices.sampled or edits or masks:
            logits = adjusted(scores.logits, edits) if edits else scores.logits
            biased = self._promise if choices.biased else None
            permitted = permit(logits, scores.numbers, self._table.forbidden, biased)
            for at, mask in masks.items():
                permitted[at, : len(mask)].masked_fill_(
                    to_device(~torch.from_numpy(mask), logits.device), float("-inf")
                )
            if edits or masks:
                tokens = likeliest(permitted)
            if choices.sampled:
                tokens = _sampled(permitted, tokens, scores)
        found: list[int | None] = [None if token < 0 else token for token in fetch(tokens)]
        for at, (row, t) in enumerate(zip(rows, _threads(rows), strict=True)):
            if row.slot.forced is not None:
                following = row.slot.forced[t.path][len(t.tokens) + len(row.drafts) :]
                found[at] = following[0] if following else None
        return found

    @staticmethod
    def _masks(rows: Sequence[Row]) -> dict[int, npt.NDArray[np.bool_]]:
        """The tokens [vocab] that go on in the grammars of structured answers, by the number of the row."""
        found = {}
        for at, (row, thread) in enumerate(zip(rows, _threads(rows), strict=True)):
            if row.slot.follower is None or row.constraint.base != "text":
                continue
            if (mask := row.slot.follower.allowed(thread.tokens, row.drafts)) is not None:
                found[at] = mask
        return found

    def _edits(self, rows: Sequence[Row], masks: Mapping[int, npt.NDArray[np.bool_]]) -> list[Edit]:
        """What the requests want of the logits of text; ``masks`` are what their grammars allow."""
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
                barred = ()  # the grammar leaves nothing else
            edits.append(Edit(at, params, visible.prompt, seen, row.drafts, barred))
        return edits


def fetch(tokens: Tensor) -> list[int]:
    """The tokens on the host: a step's one copy back, which waits until the device has come there."""
    found: list[int] = tokens.tolist()
    return found


def _sampled(permitted: Tensor, likeliest: Tensor, scores: Scores) -> Tensor:
    """``sample`` for the rows that have a temperature alone: noise for the others would be computed for nothing."""
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


def _threads(rows: Iterable[Row]) -> list[Thread]:
    return [row.slot.interpreter.threads[row.thread] for row in rows]


def _logprobs(rows: Iterable[Row], logits: Tensor, tokens: Sequence[int | None]) -> list[Logprobs | None]:
    """Log-probabilities of the rows whose requests want them."""
    found: list[Logprobs | None] = [None] * len(tokens)
    wanted, chosen, counts = [], [], []
    for at, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        if token is not None and row.slot.request.logprobs is not None:
            wanted.append(at)
            chosen.append(token)
            counts.append(row.slot.request.logprobs)
    if wanted:
        for at, logprobs in zip(wanted, log_probabilities(logits[wanted], chosen, counts), strict=True):
            found[at] = logprobs
    return found
