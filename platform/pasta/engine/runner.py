"""Runs one forward of the model over rows of several requests: builds inputs, masks and cache indices."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pasta.engine import kernels
from pasta.engine.cache import LaneCache
from pasta.engine.compiling import CompiledForward
from pasta.engine.fusing import FusedAttention
from pasta.engine.graphs import GraphShapes, Recorder, StepGraphs
from pasta.engine.loading import SMALL_MODEL, LoadedModel
from pasta.engine.masks import expand, to_model_masks
from pasta.engine.request import EngineConfig
from pasta.engine.sampling import Choices, ConstraintTable, Scores, likeliest, permit, pinned, to_device
from pasta.engine.shapes import Shape
from pasta.interpreter import Feed

_KEY_BUCKET = 64
#: Segments that the visibility table has room for at first; it grows, but then graphs are captured anew.
_SEGMENTS_AT_START, _SEGMENTS_WITH_GRAPHS = 32, 512


class Runner:
    """The model, its cache, and which token of each slot's cache belongs to which segment.

    A slot's tokens are appended as they are fed, whatever thread they come from. ``num_tokens[slot]`` says
    how many it holds, tokens included that were hidden and whose places no other has taken yet.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig, recorder: Recorder | None = None) -> None:
        self.model = loaded.model
        self.model_config = loaded.model.config
        self.device = loaded.model.device
        self.dtype = loaded.model.dtype
        slots, width = config.num_slots, config.slot_tokens + 1
        self._scratch = config.slot_tokens
        codec = loaded.codec
        #: What tokens are permitted by, and the token that promises' biases are for.
        self.constraints = ConstraintTable(codec.grammar, self.model_config.vocab_size, self.device)
        self.promise = codec.control.promise
        self.cache = LaneCache(self.model_config, slots, config.slot_tokens, self.dtype, self.device)
        self.num_tokens = [0] * slots
        self._num_segments = [0] * slots
        self._hidden: list[list[int]] = [[] for _ in range(slots)]
        #: Where the last forward's tokens are in each slot's cache.
        self.places: dict[int, list[int]] = {}
        # [slots, width]: segment (-1 where no token is), position and id of each cached token.
        self._key_segments = torch.full((slots, width), -1, dtype=torch.long, device=self.device)
        self._key_positions = torch.zeros((slots, width), dtype=torch.long, device=self.device)
        # Of the same tokens, on the host: token, segment, position.
        self._tokens, self._segments, self._positions = np.zeros((3, slots, width), dtype=np.int64)
        self._to_hide: list[int] = []  # places, counted over all slots
        self._key_index = torch.arange(width, device=self.device)
        self._slot_index = torch.arange(slots, device=self.device)
        self._slot_starts = self._slot_index * width
        segments = _SEGMENTS_AT_START if recorder is None else _SEGMENTS_WITH_GRAPHS
        self._sees = torch.zeros((slots, segments, segments), dtype=torch.bool, device=self.device)
        trace = config.trace_forward
        if trace is None:
            # With kernels a layer is a dozen operators: Python between them costs a large model as well.
            small = loaded.num_parameters < SMALL_MODEL or kernels.runs(self.dtype)
            trace = small and self.device.type == "cpu"
        self._trace_wanted = trace
        self._compiles = config.compile == "on"
        #: The forward of all tokens [B, Q], and that of flat ones [1, R], as each is first needed.
        self._forwards: dict[bool, Callable[..., tuple[Tensor, ...]]] = {}
        fused = any(isinstance(module, FusedAttention) for module in self.model.modules())
        self._can_be_flat = fused and self.device.type == "cpu" and not self._compiles
        self._keeps_hidden = loaded.heads is not None and config.drafts > 0 and config.draft_heads
        #: The states [N, hidden] that the last forward's logits were made of, where there are draft heads to read them.
        self.hidden: Tensor | None = None
        #: The rows that the last forward computed, padding included.
        self.rows_computed = 0
        #: Called right before the model runs, which releases the GIL.
        self.before_forward: Callable[[], None] = lambda: None
        self._graphs: StepGraphs | None = None
        if recorder is not None:
            self._graphs = StepGraphs(
                recorder,
                self._step,
                GraphShapes(slots, config.slot_tokens),
                lambda shape: torch.from_numpy(shape.padding(self._scratch)).to(self.device),
                lambda: (self._sees, self.constraints.forbidden),
            )

    @torch.inference_mode()
    def prepare(self) -> None:
        """Do before the first request what a later one would wait for."""
        if self._graphs is not None:
            self._graphs.prepare()
        for forward in self._forwards.values():
            if isinstance(forward, CompiledForward):
                forward.preparing = False

    def release(self, slot: int, keep: int = 0) -> None:
        """Empty a slot. Its tokens are cleared, so that none of their values can reach a later request, but for the
        first ``keep``, which ``hold`` and ``copy`` find again."""
        self.cache.clear(slot, keep, self.num_tokens[slot])
        self.num_tokens[slot] = self._num_segments[slot] = 0
        self._hidden[slot] = []
        start = slot * (self._scratch + 1)
        self._to_hide = [at for at in self._to_hide if not start <= at < start + self._scratch]
        self._key_segments[slot].fill_(-1)

    def leading_tokens(self, slot: int) -> npt.NDArray[np.int64]:
        """The tokens [n] that a slot holds from its first place on in segment 0 at positions 0, 1, …"""
        count = self.num_tokens[slot]
        leading = (self._segments[slot, :count] == 0) & (self._positions[slot, :count] == np.arange(count))
        return self._tokens[slot, : int(leading.cumprod().sum())].copy()

    def hold(self, slot: int, count: int) -> None:
        """Let a slot begin with ``count`` tokens in segment 0 at positions 0, 1, …, which its first places keep."""
        self._key_segments[slot, :count] = 0
        self._key_positions[slot, :count] = self._key_index[:count]
        self._segments[slot, :count], self._positions[slot, :count] = 0, np.arange(count)
        self.num_tokens[slot] = count

    def copy(self, source: int, target: int, first: int, stop: int) -> None:
        """Copy the tokens from place ``first`` up to ``stop`` of one slot to the same places of another."""
        self.cache.copy(source, target, first, stop)
        self._tokens[target, first:stop] = self._tokens[source, first:stop]

    def discard(self, slot: int, first: int, stop: int) -> None:
        """Clear what an empty slot keeps from place ``first`` up to ``stop``."""
        self.cache.clear(slot, first, stop)

    def hide(self, slot: int, places: Sequence[int]) -> None:
        """Show the tokens at these places of a slot to no later one; their places are used again."""
        if places:
            self._segments[slot, list(places)] = -1
            self._to_hide += [slot * (self._scratch + 1) + place for place in places]
            self._hidden[slot] = sorted([*self._hidden[slot], *places])

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
        self.places = {slot: self._take_places(slot, len(rows)) for slot, rows in feeds.items()}
        for slot in feeds:
            self._learn_segments(slot, sees[slot])
        self._hide_places()
        count = choices.numbers.shape[1]
        shape = Shape(
            slots.start,
            len(slots),
            max(len(rows) for rows in feeds.values()),
            self._visible_keys(max(self.num_tokens[slot] for slot in feeds)),
            count,
            choices.biased,
        )
        graph = None if self._graphs is None or prefill else self._graphs.find(shape)
        if graph is not None:
            shape = graph.shape
        else:
            shape = shape._replace(flat=self._flat(len(slots), [*map(len, feeds.values())]))
        inputs = pinned(torch.from_numpy(self._inputs(shape, feeds, choices)), self.device)
        if graph is None:
            inputs = inputs.to(self.device, non_blocking=True)
            outputs = self._step(shape, inputs)
        else:
            self.before_forward()
            outputs, inputs = graph.run(inputs), graph.inputs
        self.rows_computed = shape.flat or shape.slots * shape.lanes
        logits, tokens, *hidden = (out[:count] for out in outputs)
        # The drafter reads them in a later step.
        self.hidden = None if not hidden else hidden[0] if graph is None else hidden[0].clone()
        return Scores(logits, tokens, shape.split(inputs)[2][:, :count], choices)

    def _inputs(
        self, shape: Shape, feeds: Mapping[int, Sequence[Feed]], choices: Choices
    ) -> npt.NDArray[np.int64]:
        """All that a step of this shape takes from the host."""
        inputs = shape.padding(self._scratch)
        fed, rows, numbers, flat = shape.split(inputs)
        wanted: list[int] = []
        fed_at: list[int] = []
        for slot, own in feeds.items():
            at, count = slot - shape.first, len(own)
            fed[0, at, :count] = self._tokens[slot, self.places[slot]] = [feed.token for feed in own]
            fed[1, at, :count] = self._positions[slot, self.places[slot]] = [feed.position for feed in own]
            fed[2, at, :count] = self._segments[slot, self.places[slot]] = [feed.segment for feed in own]
            fed[3, at, :count] = self.places[slot]
            first = len(fed_at) if shape.flat else at * shape.lanes
            wanted += [first + i for i, feed in enumerate(own) if feed.wants_logits]
            fed_at += range(at * shape.lanes, at * shape.lanes + count)
        rows[: len(wanted)] = wanted
        numbers[:, : len(wanted)] = choices.numbers
        if shape.flat:
            flat[:] = fed_at
        return inputs

    def _flat(self, num_slots: int, lanes: Collection[int]) -> int:
        """How many tokens R are fed flat; 0 where little is padding, and spreading them for attention costs more.

        Slots seldom have as many lanes each: of [B, Q] tokens two thirds are padding.
        """
        fed = sum(lanes)
        return fed if self._can_be_flat and 4 * fed <= 3 * num_slots * max(lanes) else 0

    def _step(self, shape: Shape, inputs: Tensor) -> tuple[Tensor, ...]:
        """A forward on the device, which never waits for it: ``inputs`` as ``_inputs`` lays them out.

        Returns the logits [N, V] of the wanted rows, the likeliest tokens [N] that are permitted and, where draft heads
        read them, the states [N, hidden] that the logits were made of.
        """
        # [B, Q] each, [N], [7, N], [R]
        (tokens, positions, segments, index), rows, numbers, flat = shape.split(inputs)
        at = slice(shape.first, shape.first + shape.slots)
        self._key_segments[at].scatter_(1, index, segments)
        self._key_positions[at].scatter_(1, index, positions)
        key_positions = self._key_positions[at, : shape.keys]
        visible = expand(
            self._sees[at],
            segments,
            self._key_segments[at, : shape.keys],
            # Not by place: a token may stand where a hidden one was.
            positions,
            key_positions,
        )
        masks = to_model_masks(self.model_config, visible, positions, key_positions, self.dtype)
        places = (index + self._slot_starts[at, None]).reshape(-1)
        if shape.flat:
            tokens, positions = (fed.flatten().index_select(0, flat)[None] for fed in (tokens, positions))
        outputs = self._run(shape.first, tokens, positions, masks, places, flat if shape.flat else None)
        logits, *hidden = (
            out if shape.rows == len(out) and not shape.padded else out.index_select(0, rows)
            for out in (out.flatten(0, 1) for out in outputs)
        )
        promise = self.promise if shape.biased else None
        permitted = permit(logits, numbers, self.constraints.forbidden, promise)
        return logits, likeliest(permitted), *hidden

    def _hide_places(self) -> None:
        """Let the device know which places have been hidden since the last forward."""
        if self._to_hide:
            hidden = to_device(torch.tensor(self._to_hide), self.device)
            self._key_segments.view(-1).index_fill_(0, hidden, -1)
            self._to_hide = []

    def _visible_keys(self, longest: int) -> int:
        """Cached tokens that the masks cover: rounded up to buckets, so that shapes repeat."""
        return min(-(-longest // _KEY_BUCKET) * _KEY_BUCKET, self._scratch)

    def _learn_segments(self, slot: int, sees: Sequence[int]) -> None:
        known, total = self._num_segments[slot], len(sees)
        if known == total:
            return
        size = self._sees.shape[-1]
        if total > size:
            grown = self._sees.new_zeros((len(self._sees), 2 * total, 2 * total))
            grown[:, :size, :size] = self._sees
            self._sees = grown
        num_bytes = -(-total // 8)
        packed = b"".join(bits.to_bytes(num_bytes, "little") for bits in sees[known:])
        rows = np.unpackbits(
            np.frombuffer(packed, dtype=np.uint8).reshape(total - known, num_bytes), axis=1, bitorder="little"
        )
        seen = torch.from_numpy(rows[:, :total].astype(bool))
        self._sees[slot, known:total, :total] = to_device(seen, self.device)
        self._num_segments[slot] = total

    def _run(
        self,
        first_slot: int,
        tokens: Tensor,
        positions: Tensor,
        masks: Tensor | dict[str, Tensor],
        places: Tensor,
        flat: Tensor | None,
    ) -> tuple[Tensor, ...]:
        names, tensors = (
            ((), (masks,)) if isinstance(masks, Tensor) else (tuple(masks), tuple(masks.values()))
        )
        inputs = (tokens, positions, places, self._slot_index[:first_slot], *tensors)
        is_flat = flat is not None
        if flat is not None:
            inputs = (*inputs, flat)
        if is_flat not in self._forwards:
            forward = _Forward(
                self.model, self.cache, names, flat=is_flat, keep_hidden=self._keeps_hidden
            ).eval()
            if self._compiles:
                self._forwards[is_flat] = CompiledForward(forward)
            else:
                self._forwards[is_flat] = self._trace(forward, inputs) if self._trace_wanted else forward
        self.before_forward()
        return self._forwards[is_flat](*inputs)

    def _trace(self, forward: "_Forward", example: tuple[Tensor, ...]) -> torch.jit.ScriptModule:
        """Record the forward's tensor operations, to replay them without Python.

        Sizes stay variable: lanes, slots and keys come from the inputs' shapes. Running it on the example
        writes to the cache what the replay then writes again.
        """
        with warnings.catch_warnings():
            # That tracing is deprecated, and that transformers branches on sizes: the mask is always given,
            # so these branches do not matter (the parity tests run every family traced and untraced).
            warnings.simplefilter("ignore")
            return torch.jit.freeze(torch.jit.trace(forward, example, check_trace=False))


class _Forward(nn.Module):
    """The forward with tensors as its only arguments, as tracing needs it: one mask, or one for each of its names, and
    which tokens are fed if these are ``flat``.

    Returns the logits, and with ``keep_hidden`` what the output layer made them of.
    """

    def __init__(
        self,
        model: Any,
        cache: LaneCache,
        mask_names: tuple[str, ...],
        *,
        flat: bool = False,
        keep_hidden: bool = False,
    ) -> None:
        super().__init__()
        self._model, self._cache, self._mask_names = model, cache, mask_names
        self._flat, self._keep_hidden = flat, keep_hidden

    def forward(
        self, tokens: Tensor, positions: Tensor, places: Tensor, before: Tensor, *masks: Tensor
    ) -> tuple[Tensor, ...]:
        flat = None
        if self._flat:
            masks, flat = masks[:-1], masks[-1]
        self._cache.place(before, places, masks[0], flat)
        seen: list[Tensor] = []
        watch: AbstractContextManager[Any] = nullcontext()
        if (
            self._keep_hidden
        ):  # for this call: one that stayed would hold an engine's cache as long as the model
            output = self._model.get_output_embeddings()
            watch = output.register_forward_pre_hook(lambda _, args: seen.extend(args[:1]))
        with watch:
            out = self._model(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=(
                    dict(zip(self._mask_names, masks, strict=True)) if self._mask_names else masks[0]
                ),
                past_key_values=self._cache,
                use_cache=True,
            )
        return (out.logits, *seen)
