"""Captured steps: on a GPU, launching a step's hundreds of operators takes longer than running them. A captured graph
launches all of them at once, for one shape and on fixed addresses.

A step is padded to the next shape of a few (``GraphShapes``). The shapes that decoding begins with are captured when
the engine starts, others at their second use; until then, and for a prompt's chunks, the same step runs operator by
operator.
"""

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pasta.engine.heads import HeadRunner
from pasta.engine.loading import LoadedModel
from pasta.engine.request import EngineConfig
from pasta.engine.shapes import Shape
from pasta.engine.supported import check_captured, why_not_captured

#: The most lanes of a slot, and the most rows of all slots, in a captured step: wider steps keep a GPU busy anyway.
_MOST_LANES, _MOST_ROWS = 64, 256
_LEAST_KEYS = 256
#: Captured at start-up: steps with up to so many lanes a request, over contexts up to this long.
_COMMON_LANES, _COMMON_KEYS = 8, 1024
_log = logging.getLogger(__name__)

#: A step: takes a shape and its inputs [size]; returns tensors of N rows.
Step = Callable[[Shape, Tensor], tuple[Tensor, ...]]


class Recorder(Protocol):
    """Captures graphs."""

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture the operations that ``run`` launches. Returns a function that launches them again, on the same
        memory."""


class CudaRecorder:
    """Captures CUDA graphs that share a memory pool: one at a time is replayed, so they may use the same memory."""

    def __init__(self, device: torch.device) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run once, so that libraries are set up and kernels are chosen, then capture, both on a stream of its own."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Products use a workspace that torch keeps for each stream, and drops when somebody else in this process
        # captures: a graph would go on to use it. Made anew while capturing it is in the pool, which the graph keeps.
        torch._C._cuda_clearCublasWorkspaces()
        # Other threads (another model's engine) may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        torch._C._cuda_clearCublasWorkspaces()
        replay: Callable[[], None] = graph.replay
        return replay


def recorder_for(loaded: LoadedModel, config: EngineConfig) -> Recorder | None:
    """The recorder that captures this model's steps; ``None`` if none are captured. Raises ``UserError`` if they must
    be and cannot."""
    device = loaded.model.device
    why = why_not_captured(device)
    if not why and loaded.ranks is not None:
        why = "several processes share the model"
    check_captured(config, why)
    return None if why or config.cuda_graphs == "off" else CudaRecorder(device)


def _doubling(first: int, last: int) -> list[int]:
    """``first``, twice that, and so on up to ``last``, which is one of them."""
    powers = itertools.takewhile(lambda size: size < last, (first << n for n in itertools.count()))
    return [*powers, last]


class GraphShapes:
    """The shapes of captured steps: powers of two of slots, counted from the first, of lanes and of keys.

    About a hundred for 8 slots of 2,048 tokens; each takes some 0.05 s to capture.
    """

    def __init__(self, num_slots: int, slot_tokens: int) -> None:
        self._slots, self._lanes = _doubling(1, num_slots), _doubling(1, _MOST_LANES)
        self._keys = _doubling(_LEAST_KEYS, slot_tokens)

    def padded(self, shape: Shape) -> Shape | None:
        """The least of the shapes that holds all of ``shape``, or ``None``."""
        slots = _least(self._slots, shape.first + shape.slots)
        lanes, keys = _least(self._lanes, shape.lanes), _least(self._keys, shape.keys)
        if not (slots and lanes and keys) or slots * lanes > _MOST_ROWS:
            return None
        return Shape(0, slots, lanes, keys, slots * lanes, biased=True, padded=True)

    def common(self) -> list[Shape]:
        """The shapes that decoding begins with, widest first: the narrower ones fit into the memory of the widest."""
        lanes = [count for count in self._lanes if count <= _COMMON_LANES]
        keys = [count for count in self._keys if count <= _COMMON_KEYS] or self._keys[:1]
        sizes = itertools.product(self._slots, lanes, keys)
        found = {
            padded
            for slots, count, length in sizes
            if (padded := self.padded(Shape(0, slots, count, length, 0, biased=True)))
        }
        return sorted(found, key=lambda shape: (shape.rows, shape.keys), reverse=True)


def _least(sizes: Sequence[int], needed: int) -> int:
    return next((size for size in sizes if size >= needed), 0)


@dataclass(frozen=True, slots=True)
class StepGraph:
    """A captured step: its inputs and outputs are always at the same addresses."""

    shape: Shape
    inputs: Tensor
    outputs: tuple[Tensor, ...]
    replay: Callable[[], None]

    def run(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Replay the step with ``inputs`` [size]; the outputs hold until another one is replayed."""
        self.inputs.copy_(inputs, non_blocking=True)
        self.replay()
        return self.outputs


class StepGraphs:
    """The captured steps of an engine. All of them read one buffer of inputs and write to one set of outputs.

    ``growing`` returns the tensors that a step reads and that may move: all is captured anew if one has.
    """

    def __init__(
        self,
        recorder: Recorder,
        step: Step,
        shapes: GraphShapes,
        padding: Callable[[Shape], Tensor],
        growing: Callable[[], Sequence[Tensor]],
    ) -> None:
        self._recorder, self._step, self._shapes = recorder, step, shapes
        self._padding, self._growing = padding, growing
        self._addresses: list[int] = []
        self._graphs: dict[Shape, StepGraph] = {}
        self._used: set[Shape] = set()
        self._inputs = torch.empty(0)
        self._outputs: list[Tensor] = []
        self._full = False

    def prepare(self) -> None:
        """Capture the shapes that decoding begins with."""
        for shape in self._shapes.common():
            self._capture(shape)
        _log.info("captured %d steps", len(self._graphs))

    def padded(self, shape: Shape) -> Shape | None:
        """The shape that a step of ``shape`` is padded to, once it is captured; ``None`` if it never is."""
        return self._shapes.padded(shape)

    def find(self, shape: Shape) -> StepGraph | None:
        """The captured step that ``shape`` fits into; ``None`` if it does not, or for the first time."""
        padded = self._shapes.padded(shape)
        if padded is None:
            return None
        if self._graphs and self._addresses != self._now():
            self._graphs.clear()
            self._full = False
        if padded not in self._graphs and padded in self._used:
            self._capture(padded)
        self._used.add(padded)
        return self._graphs.get(padded)

    def _now(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self._growing()]

    @torch.inference_mode()
    def _capture(self, shape: Shape) -> None:
        if self._full:
            return
        padding = self._padding(shape)
        if not self._outputs:
            self._inputs = padding.new_zeros(Shape(0, 1, _MOST_ROWS, 0, _MOST_ROWS, biased=True).size)
            self._outputs = [
                out.new_empty((_MOST_ROWS, *out.shape[1:])) for out in self._step(shape, padding)
            ]
        inputs = self._inputs[: shape.size]
        outputs = tuple(out[: shape.rows] for out in self._outputs)
        inputs.copy_(padding)

        def run() -> None:
            for out, made in zip(outputs, self._step(shape, inputs), strict=True):
                out.copy_(made)

        try:
            replay = self._recorder.record(run)
        except torch.OutOfMemoryError:
            _log.warning(
                "no memory is left to capture more steps than %d; others run eagerly", len(self._graphs)
            )
            self._full = True
            return
        self._addresses = self._now()
        self._graphs[shape] = StepGraph(shape, inputs, outputs, replay)


class GuessGraphs:
    """The captured guesses of draft heads, by the number of rows, padded to a power of two."""

    def __init__(self, recorder: Recorder, heads: HeadRunner, num_slots: int) -> None:
        self._recorder, self._heads = recorder, heads
        self._sizes = _doubling(1, min(num_slots * _MOST_LANES, _MOST_ROWS))
        self._graphs: dict[int, Callable[[], None]] = {}
        self._inputs: tuple[Tensor, Tensor] | None = None
        self._outputs: tuple[Tensor, ...] = ()

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture all sizes, widest first."""
        self._inputs = hidden, tokens = self._heads.inputs(self._sizes[-1])
        self._outputs = tuple(torch.empty_like(out) for out in self._heads.following(hidden, tokens))
        for size in reversed(self._sizes):

            def run(size: int = size) -> None:
                made = self._heads.following(hidden[:size], tokens[:size])
                for out, own in zip(self._outputs, made, strict=True):
                    out[:size].copy_(own)

            try:
                self._graphs[size] = self._recorder.record(run)
            except torch.OutOfMemoryError:
                _log.warning("no memory is left to capture the draft heads' guesses; they run eagerly")
                self._graphs.clear()
                return

    def following(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """``HeadRunner.following``, captured if there are few enough rows; holds until the next one is replayed."""
        count = len(tokens)
        if self._inputs is None or (size := _least(self._sizes, count)) not in self._graphs:
            return self._heads.following(hidden, tokens)
        for fixed, own in zip(self._inputs, (hidden, tokens), strict=True):
            fixed[:count].copy_(own)
        self._graphs[size]()
        found, odds = (out[:count] for out in self._outputs)
        return found, odds
