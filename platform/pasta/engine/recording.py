"""Records a model's forward, and a loop over it, to run them without Python between their operators.

The loop is TorchScript. Python between two steps takes as long as the forward of a model of a few million parameters,
mostly because it finds none of its own code and data in the caches, which that forward has filled with weights.
"""

import itertools
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from pasta.engine.cache import LaneCache
from pasta.engine.masks import as_model_takes
from pasta.engine.sampling import NUM_CHOICES, UNKNOWN, cut_scores, permit_and_bias, scaled_scores


class LaterSteps(NamedTuple):
    """What the steps after the first need. ``inputs`` are those of the second, as ``DeviceState.forward`` has them, in
    which N rows feed the N tokens that the first step chooses: these are missing, and positions are one less. Then, for
    each row: the place in its slot's cache of the token that it feeds and the key of its random stream, [S - 1, N]
    each; the tokens of all steps as far as they are known in advance, else ``UNKNOWN`` [S, N], or [0, N] if none is;
    and its mode [N], a row of ``ChosenBy.goes_on``."""

    inputs: Tensor
    places: Tensor
    keys: Tensor
    known: Tensor
    modes: Tensor


class ChosenBy(NamedTuple):
    """What tokens are chosen by, beside the numbers of each row: the table of what is ``forbidden``; after which tokens
    a row of each mode ``goes_on`` [modes, V]; the numbers that are ``doubles`` [4, N]; the token of promises if any row
    has a bias for it, else ``NO_PROMISE``; and whether rows are sampled, and are cut."""

    forbidden: Tensor
    goes_on: Tensor
    doubles: Tensor
    promise: int
    sampled: bool
    cut: bool


def recorded_forward(forward: nn.Module, example: tuple[Tensor, ...]) -> torch.jit.ScriptModule:
    """Record the forward's tensor operations.

    Sizes stay variable: lanes, slots and keys come from the inputs' shapes. Running it on the example writes to the
    cache what the replay then writes again.
    """
    with warnings.catch_warnings():
        # That tracing is deprecated, and that transformers branches on sizes: the mask is always given, so these
        # branches do not matter (the parity tests run every family traced and untraced).
        warnings.simplefilter("ignore")
        traced: torch.jit.ScriptModule = torch.jit.trace(forward, example, check_trace=False)
        return traced


def frozen(module: nn.Module) -> Any:
    """A recorded forward, or a loop over one, with its weights as constants: it goes on with what is copied into them.

    TorchScript makes one constant of those that are equal, and computes in advance what follows from constants alone,
    such as Gemma's 1 + weight: both would ignore new weights. So equal ones stay attributes, and so do vectors, but for
    those of the kernels' norms, which nothing is computed from and which are faster as constants.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, too
        script = torch.jit.script(module).eval()
        return torch.jit.freeze(script, preserved_attrs=preserved_attributes(script))


def preserved_attributes(module: nn.Module) -> list[str]:
    """The names of the weights that ``frozen`` leaves attributes: those that equal one before them, and parameters that
    are vectors; the kernels' norms have buffers."""
    names: list[str] = []
    known: dict[tuple[torch.dtype, torch.Size], list[Tensor]] = {}
    parameters = dict(module.named_parameters())
    for name, weight in itertools.chain(parameters.items(), module.named_buffers()):
        if weight.layout != torch.strided:  # in oneDNN's layout it is no constant
            continue
        others = known.setdefault((weight.dtype, weight.shape), [])
        is_vector = weight.dim() < 2 and name in parameters
        if is_vector or any(torch.equal(weight, other) for other in others):
            names.append(name)
        else:
            others.append(weight)
    return names


class StepLoop(nn.Module):
    """Steps one after another, each of which feeds what the one before has chosen. ``recorded`` is the forward of all
    tokens [B, Q], or, ``is_flat``, that of flat ones [1, R]."""

    is_flat: Final[bool]  # which decides what TorchScript compiles

    def __init__(
        self,
        recorded: torch.jit.ScriptModule,
        window: int,
        dtype: torch.dtype,
        *,
        keeps_states: bool,
        is_flat: bool,
    ) -> None:
        super().__init__()
        self.is_flat = is_flat
        self.recorded, self.window, self.dtype = recorded, window, dtype
        self.num_choices, self.unknown, self.keeps_states = NUM_CHOICES, UNKNOWN, keeps_states

    def forward(
        self,
        inputs: Tensor,
        key_segments: Tensor,
        key_positions: Tensor,
        sees: Tensor,
        before: Tensor,
        following: Tensor,
        places: Tensor,
        keys: Tensor,
        known: Tensor,
        modes: Tensor,
        forbidden: Tensor,
        goes_on: Tensor,
        doubles: Tensor,
        promise: int,
        sampled: bool,
        cut: bool,
        first: int,
        slots: int,
        lanes: int,
        visible: int,
        flat: int,
        later_lanes: int,
        later_flat: int,
    ) -> list[Tensor]:
        """Tokens [N, S] and logits [N, S, V] of the S steps that were run, and states if the forward keeps them.

        Arguments are those of ``DeviceState.steps``, one by one.
        """
        spread, rows = slots * lanes, places.size(1)
        fed = flat if self.is_flat else spread
        numbers = self._numbers(inputs, spread, rows)
        tokens_of: list[Tensor] = []
        logits_of: list[Tensor] = []
        states_of: list[Tensor] = []
        is_next = True
        while is_next:
            step = len(tokens_of)
            tokens, positions, at, full, windowed = torch.ops.pasta.lay(
                inputs,
                key_segments,
                key_positions,
                sees,
                first,
                slots,
                lanes,
                visible,
                flat,
                self.window,
                self.dtype,
            )
            if self.is_flat:
                fed_flat = inputs[inputs.size(0) - flat :]
                out = self.recorded(tokens, positions, at, before, full, windowed, fed_flat)
            else:
                out = self.recorded(tokens, positions, at, before, full, windowed)
            wanted = inputs[4 * spread : 4 * spread + rows]
            logits = out[0].flatten(0, 1)
            if rows < fed:
                logits = logits.index_select(0, wanted)
            if self.keeps_states:
                states = out[-1].flatten(0, 1)
                states_of.append(states.index_select(0, wanted) if rows < fed else states)
            chosen = torch.ops.pasta.likeliest_permitted(logits, numbers, forbidden, promise)
            if sampled:
                permitted = permit_and_bias(logits, numbers[0], forbidden, promise, doubles[0]).float()
                scaled = scaled_scores(permitted, permitted.amax(dim=-1), doubles[1])
                if cut:
                    scaled = cut_scores(scaled, permitted, doubles[1], numbers[2], doubles[2], doubles[3])
                drawn = torch.ops.pasta.gumbel_argmax(scaled, numbers[1])
                chosen = torch.where((doubles[1] > 0) & (chosen >= 0), drawn, chosen)
            if known.size(0) > 0:
                chosen = torch.where(known[step] == self.unknown, chosen, known[step])
            tokens_of.append(chosen)
            logits_of.append(logits)
            if step == 0:  # it may feed more than the others do: what a promise ends with, what it opens
                inputs, lanes, spread, flat = following, later_lanes, slots * later_lanes, later_flat
                fed = flat if self.is_flat else spread
                numbers = self._numbers(inputs, spread, rows)
            is_next = step < places.size(0) and torch.ops.pasta.follow(
                inputs, chosen, places[step], keys[step], modes, goes_on, spread, flat
            )
        found = [torch.stack(tokens_of, 1), torch.stack(logits_of, 1)]
        return found + [torch.stack(states_of, 1)] if self.keeps_states else found

    def _numbers(self, inputs: Tensor, spread: int, rows: int) -> Tensor:
        """``Shape.numbers``, [7, N], of a step whose slots and lanes are so many tokens."""
        first = 4 * spread + rows
        return inputs[first : first + self.num_choices * rows].view(self.num_choices, rows)


class Forward(nn.Module):
    """The forward with tensors as its only arguments, as tracing needs it.

    Returns the logits, and with ``keep_hidden`` what the output layer made them of.
    """

    def __init__(self, model: Any, cache: LaneCache, *, keep_hidden: bool = False) -> None:
        super().__init__()
        self._model, self._cache, self._keep_hidden = model, cache, keep_hidden

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        places: Tensor,
        before: Tensor,
        full: Tensor,
        windowed: Tensor,
        flat: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """``full`` and ``windowed`` are the masks; ``flat`` [R] says which tokens are fed, if not all are."""
        self._cache.place(before, places, full, flat)
        seen: list[Tensor] = []
        watch: AbstractContextManager[Any] = nullcontext()
        if self._keep_hidden:
            # A hook for this call: one that stayed would hold the cache as long as the model.
            output = self._model.get_output_embeddings()
            watch = output.register_forward_pre_hook(lambda _, args: seen.extend(args[:1]))
        with watch:
            out = self._model(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=as_model_takes(self._model.config, full, windowed),
                past_key_values=self._cache,
                use_cache=True,
            )
        return (out.logits, *seen)
