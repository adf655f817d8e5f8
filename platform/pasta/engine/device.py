"""An engine's state on its device, and the operations on it: forwards, and moves in the cache.

With tensor parallelism every process has such a state, for its part of the model and of the cache. The first process
tells the others which operations it runs (pasta/engine/ranks.py).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pasta.engine import kernels
from pasta.engine.cache import LaneCache
from pasta.engine.compiling import CompiledForward
from pasta.engine.fusing import attends_by_kernels
from pasta.engine.loading import SMALL_MODEL, LoadedModel
from pasta.engine.masks import both_masks, expand, sliding_window
from pasta.engine.recording import (
    ChosenBy,
    Forward,
    LaterSteps,
    StepLoop,
    frozen,
    preserved_attributes,
    recorded_forward,
)
from pasta.engine.request import EngineConfig
from pasta.engine.section import INTEGERS
from pasta.engine.shapes import Shape
from pasta.engine.transfer import to_device

#: Segments for which the visibility table has room at first. A table that grows has to be captured in graphs anew.
_SEGMENTS_AT_START, _SEGMENTS_WITH_GRAPHS = 32, 512
_Arguments = ParamSpec("_Arguments")


def _told(
    method: Callable[Concatenate["DeviceState", _Arguments], None],
) -> Callable[Concatenate["DeviceState", _Arguments], None]:
    """Decorates a method that the other ranks, if there are any, must run too: tells them, then runs it here. Its
    arguments are small, and the same on all ranks."""

    @functools.wraps(method)
    def tell_and_do(self: "DeviceState", *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        if self._ranks is not None:
            self._ranks.tell(self.number, method.__name__, args)
        method(self, *args, **kwargs)

    return tell_and_do


def _cache_dtype(loaded: LoadedModel) -> torch.dtype:
    """What keys and values are kept in. With the kernels' integer layers it is half of what activations have: with long
    contexts or many requests a step reads more of the cache than of the weights."""
    halved = (
        loaded.format.name in INTEGERS and attends_by_kernels(loaded.model) and kernels.runs(torch.bfloat16)
    )
    return torch.bfloat16 if halved else loaded.format.dtype


class DeviceState:
    """The model, its cache, which token of each slot's cache belongs to which segment, and who sees whom."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig, *, captured: bool = False) -> None:
        self.model = loaded.model
        self.model_config = loaded.model.config
        self.device = loaded.model.device
        self.dtype = loaded.format.dtype
        self._ranks = loaded.ranks
        #: This state's number among those of the processes that share the model.
        self.number = 0 if loaded.ranks is None else loaded.ranks.add_state(loaded.number, config)
        slots, width = config.num_slots, config.slot_tokens + 1
        self.cache = LaneCache(
            self.model_config,
            slots,
            config.slot_tokens,
            _cache_dtype(loaded),
            self.device,
            shards=1 if loaded.ranks is None else loaded.ranks.size,
        )
        # [slots, width]: segment (-1 where no token is) and position of each cached token.
        self.key_segments = torch.full((slots, width), -1, dtype=torch.long, device=self.device)
        self.key_positions = torch.zeros((slots, width), dtype=torch.long, device=self.device)
        self._key_index = torch.arange(width, device=self.device)
        self._slot_index = torch.arange(slots, device=self.device)
        self.slot_starts = self._slot_index * width
        segments = _SEGMENTS_WITH_GRAPHS if captured else _SEGMENTS_AT_START
        self.sees = torch.zeros((slots, segments, segments), dtype=torch.bool, device=self.device)
        trace = config.trace_forward
        if trace is None:
            # With kernels a layer is a dozen operators: Python between them costs a large model as well.
            small = loaded.num_parameters < SMALL_MODEL or kernels.runs(self.dtype)
            trace = small and self.device.type == "cpu"
        # Where small operators bound a step, a kernel does what ``_lay`` has to do.
        self._lay_by_kernel = None
        if kernels.run_on(self.device, self.dtype):
            self._lay_by_kernel = kernels.operators(self.device).lay
        self._window = sliding_window(self.model_config) or 0
        self._trace_wanted = trace and loaded.ranks is None  # sums over the ranks cannot be recorded
        self.compiles = config.compile == "on"
        #: The forward of all tokens [B, Q], and that of flat ones [1, R], as each is first needed.
        self.forwards: dict[bool, Callable[..., tuple[Tensor, ...]]] = {}
        #: Both recorded, and the loops over them, as each is first needed.
        self._recorded: dict[bool, torch.jit.ScriptModule] = {}
        #: The names of the weights that are constants in neither.
        self._preserved: dict[bool, set[str]] = {}
        self._loops: dict[bool, Callable[..., list[Tensor]]] = {}
        self.keeps_hidden = loaded.heads is not None and config.drafts > 0 and config.draft_heads

    @_told
    def release(self, slot: int, keep: int, stop: int) -> None:
        """Forget a slot's tokens, and clear those from place ``keep`` up to ``stop``."""
        self.cache.clear(slot, keep, stop)
        self.key_segments[slot].fill_(-1)

    @_told
    def clear(self, slot: int, first: int, stop: int) -> None:
        """Clear the tokens from place ``first`` up to ``stop`` of a slot."""
        self.cache.clear(slot, first, stop)

    @_told
    def copy(self, source: int, target: int, first: int, stop: int) -> None:
        """Copy the tokens from place ``first`` up to ``stop`` of one slot to the same places of another."""
        self.cache.copy(source, target, first, stop)

    @_told
    def hold(self, slot: int, count: int) -> None:
        """Begin a slot with ``count`` tokens in segment 0 at positions 0, 1, …"""
        self.key_segments[slot, :count] = 0
        self.key_positions[slot, :count] = self._key_index[:count]

    @_told
    def hide(self, places: Sequence[int]) -> None:
        """Take the tokens at these places, counted over all slots, out of every segment: no later token sees them."""
        hidden = to_device(torch.tensor(places), self.device)
        self.key_segments.view(-1).index_fill_(0, hidden, -1)

    @_told
    def learn(self, slot: int, known: int, rows: npt.NDArray[np.bool_]) -> None:
        """Note what a slot's segments from ``known`` on see [new, total]. The table grows if it is too small."""
        size, (new, total) = self.sees.shape[-1], rows.shape
        if total > size:
            grown = self.sees.new_zeros((len(self.sees), 2 * total, 2 * total))
            grown[:, :size, :size] = self.sees
            self.sees = grown
        self.sees[slot, known : known + new, :total] = to_device(torch.from_numpy(rows), self.device)

    def forward(
        self, shape: Shape, inputs: Tensor, begin: Callable[[], None] = lambda: None
    ) -> tuple[Tensor, ...]:
        """A forward that never waits for the device: ``inputs`` [size] as ``Shape.split`` lays them out.

        Returns the logits [N, V] of the wanted rows and, where draft heads read them, the states [N, hidden] that the
        logits were made of. ``begin`` is called right before the model runs.
        """
        fed = self._fed(shape, inputs)
        outputs = [out.flatten(0, 1) for out in self._run(fed, flat=bool(shape.flat), begin=begin)]
        if shape.rows == fed[0].numel() and not shape.padded:
            return tuple(outputs)
        rows = shape.wanted(inputs)
        return tuple(out.index_select(0, rows) for out in outputs)

    @property
    def loops(self) -> bool:
        """Whether this state can run several ``steps`` together."""
        return self._lay_by_kernel is not None and self._trace_wanted and not self.compiles

    def steps(
        self,
        shape: Shape,
        inputs: Tensor,
        second: Shape,
        later: LaterSteps,
        chosen_by: ChosenBy,
        begin: Callable[[], None] = lambda: None,
    ) -> list[Tensor]:
        """Run one step after another without the host: as many as there are, up to the first token after which they do
        not go on.

        The first has ``inputs`` as ``forward`` has them, the others the shape of the ``second``; all are flat or none
        is. Returns, of the S steps that have run, the tokens [N, S] of all rows, the logits [N, S, V] and, where draft
        heads read them, the states [N, S, hidden].
        """
        before, flat = self._slot_index[: shape.first], bool(shape.flat)
        if flat not in self._loops:
            if flat not in self._recorded:
                self._recorded[flat] = recorded_forward(self._forward(), self._fed(shape, inputs))
            loop = StepLoop(
                self._recorded[flat], self._window, self.dtype, keeps_states=self.keeps_hidden, is_flat=flat
            )
            self._loops[flat] = self._frozen(loop, flat=flat)
        begin()
        table = self.key_segments, self.key_positions, self.sees
        sizes = *shape[:4], shape.flat, second.lanes, second.flat
        out: list[Tensor] = self._loops[flat](inputs, *table, before, *later, *chosen_by, *sizes)
        return out

    def weights_changed(self) -> None:
        """Have what is recorded frozen again before its next use if weights have become equal that are constants in it:
        TorchScript would make one of them, for good."""
        for flat, kept in self._preserved.items():
            if not kept.issuperset(preserved_attributes(self._recorded[flat])):
                self.forwards.pop(flat, None)
                self._loops.pop(flat, None)

    def _frozen(self, module: nn.Module, *, flat: bool) -> Any:
        """``module``, which is the recorded forward or runs it, with all weights as constants that may be."""
        names = set(preserved_attributes(self._recorded[flat]))
        others = flat in self.forwards or flat in self._loops
        self._preserved[flat] = names & self._preserved[flat] if others else names
        return frozen(module)

    def _forward(self) -> Forward:
        return Forward(self.model, self.cache, keep_hidden=self.keeps_hidden).eval()

    def _fed(self, shape: Shape, inputs: Tensor) -> tuple[Tensor, ...]:
        """Note where a step's tokens go; returns what ``Forward`` takes."""
        tokens, positions, places, *masks = self._lay(shape, inputs)
        fed = (tokens, positions, places, self._slot_index[: shape.first], *masks)
        return (*fed, shape.fed_flat(inputs)) if shape.flat else fed

    def _lay(self, shape: Shape, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Note where a step's tokens go. Returns the tokens and positions that are fed, [B, Q] or flat [1, R]; the
        places [B·Q] of all, counted over the slots; and the masks of all keys and of those within the window."""
        if self._lay_by_kernel is not None:
            sizes = (shape.first, shape.slots, shape.lanes, shape.keys, shape.flat)
            laid: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = self._lay_by_kernel(
                inputs, self.key_segments, self.key_positions, self.sees, *sizes, self._window, self.dtype
            )
            return laid
        (tokens, positions, segments, index), _, _, flat = shape.split(inputs)  # [B, Q] each, [R]
        at = slice(shape.first, shape.first + shape.slots)
        self.key_segments[at].scatter_(1, index, segments)
        self.key_positions[at].scatter_(1, index, positions)
        key_positions = self.key_positions[at, : shape.keys]
        visible = expand(
            self.sees[at],
            segments,
            self.key_segments[at, : shape.keys],
            # Not by place in the cache: a token may stand where a hidden one was.
            positions,
            key_positions,
        )
        masks = both_masks(self.model_config, visible, positions, key_positions, self.dtype)
        places = (index + self.slot_starts[at, None]).reshape(-1)
        if shape.flat:
            tokens, positions = (fed.flatten().index_select(0, flat)[None] for fed in (tokens, positions))
        return tokens, positions, places, *masks

    def _run(
        self, inputs: tuple[Tensor, ...], *, flat: bool, begin: Callable[[], None]
    ) -> tuple[Tensor, ...]:
        if flat not in self.forwards:
            if self.compiles:
                self.forwards[flat] = CompiledForward(self._forward())
            elif self._trace_wanted:
                if flat not in self._recorded:
                    self._recorded[flat] = recorded_forward(self._forward(), inputs)
                self.forwards[flat] = self._frozen(self._recorded[flat], flat=flat)
            else:
                self.forwards[flat] = self._forward()
        begin()
        return self.forwards[flat](*inputs)
