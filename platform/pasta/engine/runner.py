"""Builds the inputs of one forward over rows of several requests, and knows what is where in the cache."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pasta.engine.compiling import CompiledForward
from pasta.engine.device import DeviceState
from pasta.engine.fusing import FusedAttention, attends_by_kernels, computes_by_kernels, whole_rows
from pasta.engine.graphs import GraphShapes, GuessGraphs, Recorder, StepGraphs
from pasta.engine.kernels import claimed_threads
from pasta.engine.loading import LoadedModel
from pasta.engine.recording import ChosenBy, LaterSteps
from pasta.engine.request import EngineConfig
from pasta.engine.sampling import NO_PROMISE, Choices, ConstraintTable, Scores, doubles, likeliest_permitted
from pasta.engine.shapes import Shape
from pasta.engine.transfer import pinned
from pasta.interpreter import Feed

_KEY_BUCKET = 64


class StepsTogether(NamedTuple):
    """Of S steps that were run together: the tokens [N, S], logits [N, S, V] and, where draft heads read them, states
    [N, S, hidden] of N rows; and where each step's tokens are in each slot's cache."""

    tokens: Tensor
    logits: Tensor
    states: Tensor | None
    places: list[dict[int, list[int]]]


class Later(NamedTuple):
    """What K steps after a first one depend on, beside its ``choices``: what the second feeds (tokens missing,
    positions one less), the ``choices`` of all of them but for the stream keys, these [K, N], the tokens known in
    advance [K + 1, N], [0, N] if none is, and the mode of each row [N], a row of ``ConstraintTable.goes_on``."""

    feeds: Mapping[int, Sequence[Feed]]
    choices: Choices
    keys: npt.NDArray[np.int64]
    known: npt.NDArray[np.int64]
    modes: npt.NDArray[np.int64]


class Runner:
    """The model, its cache, and which token of each slot's cache belongs to which segment.

    A slot's tokens are appended as they are fed, whatever thread they come from. ``num_tokens[slot]`` says
    how many it holds, tokens included that were hidden and whose places no other has taken yet.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig, recorder: Recorder | None = None) -> None:
        self.state = DeviceState(loaded, config, captured=recorder is not None)
        self.model, self.model_config = self.state.model, self.state.model_config
        self.device, self.cache = self.state.device, self.state.cache
        self._ranks = loaded.ranks
        slots, width = config.num_slots, config.slot_tokens + 1
        self._scratch = config.slot_tokens
        codec = loaded.codec
        #: The table of constraints, and the token that promise biases apply to.
        self.constraints = ConstraintTable(codec.grammar, self.model_config.vocab_size, self.device)
        self.promise = codec.control.promise
        self.num_tokens = [0] * slots
        self._num_segments = [0] * slots
        self._hidden: list[list[int]] = [[] for _ in range(slots)]
        #: Where the last forward's tokens are in each slot's cache.
        self.places: dict[int, list[int]] = {}
        # Of each cached token [slots, width]: its id, position, segment.
        self._cached = np.zeros((3, slots, width), dtype=np.int64)
        self._tokens, self._positions, self._segments = self._cached
        self._to_hide: list[int] = []  # places, counted over all slots
        fused = any(isinstance(module, FusedAttention) for module in self.model.modules())
        self._can_be_flat = fused and self.device.type == "cpu" and not self.state.compiles
        self._attends_flat = attends_by_kernels(self.model)
        #: A step's threads: those of the kernels alone, where they compute the model.
        self.threads: Callable[[], AbstractContextManager[None]] = (
            claimed_threads if computes_by_kernels(self.model) else nullcontext
        )
        #: What ``pasta.engine.fusing.whole_rows`` says of the model.
        self.whole_rows = whole_rows(self.model)
        #: The states [N, hidden] from which the last forward's logits were made, if draft heads read them. Those of a
        #: captured step are valid until the next step.
        self.hidden: Tensor | None = None
        self._heads = loaded.heads if self.state.keeps_hidden else None
        #: Whether draft heads guess right after a token is chosen, so that the host need not wait for them.
        self.guesses_ahead = self._heads is not None and (recorder is not None or self.device.type != "cpu")
        #: The rows that the last forward computed, padding included.
        self.rows_computed = 0
        #: Called right before the model runs, which releases the GIL.
        self.before_forward: Callable[[], None] = lambda: None
        self._graphs: StepGraphs | None = None
        self._guess_graphs: GuessGraphs | None = None
        if recorder is not None and self._heads is not None:
            self._guess_graphs = GuessGraphs(recorder, self._heads, slots)
        if recorder is not None:
            self._graphs = StepGraphs(
                recorder,
                self._step,
                GraphShapes(slots, config.slot_tokens),
                lambda shape: torch.from_numpy(shape.padding(self._scratch)).to(self.device),
                lambda: (self.state.sees, self.constraints.forbidden),
            )

    @torch.inference_mode()
    def prepare(self) -> None:
        """Do ahead what would otherwise delay the first request."""
        if self._graphs is not None:
            self._graphs.prepare()
        if self._guess_graphs is not None:
            self._guess_graphs.prepare()
        for forward in self.state.forwards.values():
            if isinstance(forward, CompiledForward):
                forward.preparing = False

    def release(self, slot: int, keep: int = 0) -> None:
        """Empty a slot. Its tokens are cleared, so that none of their values can reach a later request, but for the
        first ``keep``, which ``hold`` and ``copy`` find again."""
        self.state.release(slot, keep, self.num_tokens[slot])
        self.num_tokens[slot] = self._num_segments[slot] = 0
        self._hidden[slot] = []
        start = slot * (self._scratch + 1)
        self._to_hide = [at for at in self._to_hide if not start <= at < start + self._scratch]

    def leading_tokens(self, slot: int) -> npt.NDArray[np.int64]:
        """The tokens [n] that a slot holds from its first place on in segment 0 at positions 0, 1, …"""
        count = self.num_tokens[slot]
        leading = (self._segments[slot, :count] == 0) & (self._positions[slot, :count] == np.arange(count))
        return self._tokens[slot, : int(leading.cumprod().sum())].copy()

    def hold(self, slot: int, count: int) -> None:
        """Begin a slot with ``count`` tokens in segment 0 at positions 0, 1, …, which are in its first places
        already."""
        self.state.hold(slot, count)
        self._segments[slot, :count], self._positions[slot, :count] = 0, np.arange(count)
        self.num_tokens[slot] = count

    def copy(self, source: int, target: int, first: int, stop: int) -> None:
        """Copy the tokens from place ``first`` up to ``stop`` of one slot to the same places of another."""
        self.state.copy(source, target, first, stop)
        self._tokens[target, first:stop] = self._tokens[source, first:stop]

    def discard(self, slot: int, first: int, stop: int) -> None:
        """Clear what an empty slot keeps from place ``first`` up to ``stop``."""
        self.state.clear(slot, first, stop)

    def hide(self, slot: int, places: Sequence[int]) -> None:
        """Hide the tokens at these places of a slot from all later ones; the places are used again."""
        if places:
            self._segments[slot, list(places)] = -1
            self._to_hide += [slot * (self._scratch + 1) + place for place in places]
            self._hidden[slot] = sorted([*self._hidden[slot], *places])

    @property
    def loops(self) -> bool:
        """Whether several ``steps`` can be run together here."""
        return self._graphs is None and self.state.loops

    @property
    def pads(self) -> bool:
        """Whether steps are padded to captured shapes."""
        return self._graphs is not None

    def num_rows(self, slots: range, lanes: Collection[int]) -> int:
        """The rows that a step of these slots computes, in which those that take part feed so many lanes each."""
        if self._graphs is not None:
            shape = Shape(slots.start, len(slots), max(lanes), 1, 0, biased=True)
            if (padded := self._graphs.padded(shape)) is not None:
                return padded.slots * padded.lanes
        return self._flat(len(slots), lanes) or len(slots) * max(lanes)

    def room(self, slot: int) -> int:
        """How many more tokens a slot can hold."""
        return self._scratch - self.num_tokens[slot] + len(self._hidden[slot])

    def prefilled_at_once(self, chunk: int) -> int:
        """How many tokens of a prompt a step feeds where a ``chunk`` is configured: at most ``whole_rows``, unless that
        is 0. More would not be faster, and then a prefix that is found in the cache could only end between chunks."""
        return min(chunk, self.whole_rows or chunk)

    def _take_places(self, slot: int, count: int) -> list[int]:
        hidden, first = self._hidden[slot], self.num_tokens[slot]
        places, self._hidden[slot] = hidden[:count], hidden[count:]
        self.num_tokens[slot] = first + count - len(places)
        return [*places, *range(first, self.num_tokens[slot])]

    @torch.inference_mode()
    def forward(
        self,
        slots: range,
        feeds: Mapping[int, Sequence[Feed]],
        sees: Mapping[int, Sequence[int]],
        choices: Choices,
        prefill: bool = False,
    ) -> Scores:
        """Feed tokens to neighbouring slots in one forward; returns the scores of N rows, until the next one.

        ``feeds[slot]`` are the tokens of each slot that takes part, ``sees[slot]`` its visibility bitmasks.
        The N rows are those that want logits, slot by slot in feeding order, and are chosen by ``choices``.
        A ``prefill``, many tokens of one slot, is never a captured step.
        """
        self._begin(feeds, sees)
        shape, count = self._shape(slots, feeds, choices), choices.numbers.shape[1]
        graph = None if self._graphs is None or prefill else self._graphs.find(shape)
        if graph is not None:
            shape = graph.shape
        else:
            shape = shape._replace(flat=self._flat(len(slots), [*map(len, feeds.values())]))
        built = self._inputs(shape, feeds, self.places, choices)
        self._note(shape, built, feeds)
        if self._ranks is not None:
            self._ranks.tell(self.state.number, "forward", (shape, built), now=True)
        inputs = pinned(torch.from_numpy(built), self.device)
        if graph is None:
            inputs = inputs.to(self.device, non_blocking=True)
            outputs = self._step(shape, inputs)
        else:
            self.before_forward()
            outputs, inputs = graph.run(inputs), graph.inputs
        self.rows_computed = shape.flat or shape.slots * shape.lanes
        numbers = shape.numbers(inputs)
        if shape.rows > count:  # a captured step has more rows than are wanted
            outputs, numbers = tuple(out[:count] for out in outputs), numbers[:, :count]
        logits, tokens, *hidden = outputs
        self.hidden = hidden[0] if hidden else None
        return Scores(logits, tokens, numbers, choices)

    @torch.inference_mode()
    def steps(
        self,
        slots: range,
        feeds: Mapping[int, Sequence[Feed]],
        sees: Mapping[int, Sequence[int]],
        choices: Choices,
        later: Later,
    ) -> StepsTogether:
        """Run ``forward`` and up to K more steps, of which each feeds the N tokens that the one before has chosen,
        until one of these is not what its thread goes on with."""
        self._begin(feeds, sees)
        taken = {slot: (self.num_tokens[slot], self._hidden[slot]) for slot in feeds}
        following = later.feeds
        later_places = [self._take_all_places(following) for _ in later.keys]
        lanes = [[*map(len, own.values())] for own in (feeds, following)]
        shape = self._shape(slots, feeds, choices)
        second = shape._replace(lanes=max(lanes[1]))
        if any(self._flat(len(slots), own) for own in lanes):
            shape, second = (
                of._replace(flat=sum(own)) for of, own in zip((shape, second), lanes, strict=True)
            )
        built = self._inputs(shape, feeds, self.places, choices)
        self._note(shape, built, feeds)
        inputs = torch.from_numpy(built)
        places = np.array([[*chain(*own.values())] for own in later_places]).reshape(later.keys.shape)
        tokens, logits, *states = self.state.steps(
            shape,
            inputs,
            second,
            LaterSteps(
                torch.from_numpy(self._inputs(second, following, later_places[0], later.choices)),
                *map(torch.from_numpy, (places, later.keys, later.known, later.modes)),
            ),
            ChosenBy(
                self.constraints.forbidden,
                self.constraints.goes_on,
                doubles(shape.numbers(inputs)),
                self.promise if shape.biased else NO_PROMISE,
                choices.sampled,
                choices.cut,
            ),
            self.before_forward,
        )
        fed, at = tokens.numpy()[:, :-1].T, 0  # [steps, N]; what the last step has chosen has not been fed
        count = len(fed)
        for slot, own in following.items():
            self.num_tokens[slot], self._hidden[slot] = taken[slot]
            used = self._take_places(slot, count * len(own))  # the same again, but for what was not needed
            _, _, positions, segments, _ = zip(*own, strict=True)
            self._tokens[slot, used] = fed[:, at : at + len(own)].ravel()
            self._positions[slot, used] = np.add.outer(np.arange(1, count + 1), positions).ravel()
            self._segments[slot, used] = segments * count
            at += len(own)
        self.rows_computed = shape.flat or shape.slots * shape.lanes
        return StepsTogether(
            tokens, logits, states[0] if states else None, [self.places, *later_places[:count]]
        )

    def _begin(self, feeds: Mapping[int, Sequence[Feed]], sees: Mapping[int, Sequence[int]]) -> None:
        self.places = self._take_all_places(feeds)
        for slot in feeds:
            self._learn_segments(slot, sees[slot])
        if self._to_hide:
            self.state.hide(self._to_hide)
            self._to_hide = []

    def _take_all_places(self, feeds: Mapping[int, Sequence[Feed]]) -> dict[int, list[int]]:
        return {slot: self._take_places(slot, len(rows)) for slot, rows in feeds.items()}

    def _shape(self, slots: range, feeds: Mapping[int, Sequence[Feed]], choices: Choices) -> Shape:
        return Shape(
            slots.start,
            len(slots),
            max(len(rows) for rows in feeds.values()),
            self._visible_keys(max(self.num_tokens[slot] for slot in feeds)),
            choices.numbers.shape[1],
            choices.biased,
        )

    @torch.inference_mode()
    def guess(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Have draft heads guess after the tokens ``chosen`` [N] from the last N rows of the last forward: the tokens
        that follow, and the odds [N, depth]."""
        assert self.hidden is not None
        assert self._heads is not None
        hidden = self.hidden[len(self.hidden) - len(chosen) :]
        return (self._guess_graphs or self._heads).following(hidden, chosen)

    def _inputs(
        self,
        shape: Shape,
        feeds: Mapping[int, Sequence[Feed]],
        places: Mapping[int, Sequence[int]],
        choices: Choices,
    ) -> npt.NDArray[np.int64]:
        """All inputs of a step of this shape, as the host lays them out."""
        if len(feeds) == 1 and shape.slots == 1 and not shape.padded:
            ((slot, own),) = feeds.items()
            _, *columns, wants = zip(*own, strict=True)
            rows_at = (at for at, wants_logits in enumerate(wants) if wants_logits)
            fed = np.array([*chain(*columns), *places[slot], *rows_at])
            return np.concatenate((fed, choices.numbers.reshape(-1)))
        inputs = shape.padding(self._scratch)
        fed, rows, numbers, flat = shape.split(inputs)
        wanted: list[int] = []
        fed_at: list[int] = []
        for slot, own in feeds.items():
            at, count = slot - shape.first, len(own)
            _, *columns, _ = zip(*own, strict=True)
            fed[:3, at, :count] = columns
            fed[3, at, :count] = places[slot]
            first = len(fed_at) if shape.flat else at * shape.lanes
            wanted += [first + i for i, feed in enumerate(own) if feed.wants_logits]
            fed_at += range(at * shape.lanes, at * shape.lanes + count)
        rows[: len(wanted)] = wanted
        numbers[:, : len(wanted)] = choices.numbers
        if shape.flat:
            flat[:] = fed_at
        return inputs

    def _note(self, shape: Shape, inputs: npt.NDArray[np.int64], feeds: Mapping[int, Sequence[Feed]]) -> None:
        """Note what is at the places of a step's tokens."""
        fed, *_ = shape.split(inputs)
        for slot, own in feeds.items():
            self._cached[:, slot, self.places[slot]] = fed[:3, slot - shape.first, : len(own)]

    def _flat(self, num_slots: int, lanes: Collection[int]) -> int:
        """How many tokens R are fed flat; 0 if none of [B, Q] is padding, or little of it where spreading tokens for
        attention costs more. Slots seldom have equally many lanes: about two thirds of [B, Q] are padding."""
        fed, of = sum(lanes), num_slots * max(lanes)
        pays = fed < of if self._attends_flat else 4 * fed <= 3 * of
        return fed if self._can_be_flat and pays else 0

    def _step(self, shape: Shape, inputs: Tensor) -> tuple[Tensor, ...]:
        """A forward on the device, which never waits for it: ``inputs`` as ``_inputs`` lays them out.

        Returns the logits [N, V] of the wanted rows, the likeliest tokens [N] that are permitted and, where draft heads
        read them, the states [N, hidden] that the logits were made of.
        """
        logits, *hidden = self.state.forward(shape, inputs, self.before_forward)
        numbers = shape.numbers(inputs)
        promise = self.promise if shape.biased else NO_PROMISE
        return logits, likeliest_permitted(logits, numbers, self.constraints.forbidden, promise), *hidden

    def _visible_keys(self, longest: int) -> int:
        """Cached tokens that the masks cover: rounded up to buckets, so that shapes repeat."""
        return min(-(-longest // _KEY_BUCKET) * _KEY_BUCKET, self._scratch)

    def _learn_segments(self, slot: int, sees: Sequence[int]) -> None:
        known, total = self._num_segments[slot], len(sees)
        if known == total:
            return
        num_bytes = -(-total // 8)
        packed = b"".join(bits.to_bytes(num_bytes, "little") for bits in sees[known:])
        rows = np.unpackbits(
            np.frombuffer(packed, dtype=np.uint8).reshape(total - known, num_bytes), axis=1, bitorder="little"
        )
        self.state.learn(slot, known, rows[:, :total].astype(bool))
        self._num_segments[slot] = total
