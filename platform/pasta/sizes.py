"""The sizes and switches of a decoding engine: for the engine, for configurations of one, and for the simulator."""

from dataclasses import dataclass
from typing import Literal

from pasta.bounds import check_at_most, check_integers, check_not_negative, check_positive, check_switches

#: No machine has room for more: an engine's slots, and the tokens of a slot, a prompt or a row of training.
MOST_SLOTS, MOST_TOKENS = 1 << 20, 1 << 24
#: Steps together (``multi_step``) take no more seconds than this, since requests that come and go wait for them, and
#: are no more than these.
MOST_SECONDS_TOGETHER, MOST_STEPS_TOGETHER = 0.01, 16


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """How much an engine holds: ``num_slots`` requests decode at once, each within ``slot_tokens`` tokens of cache
    (prompt and response); prompts are prefilled ``prefill_chunk`` tokens a step, or with the CPU kernels 64 if that is
    less.

    Raises ValueError if one of them is no positive integer, or there are more slots or tokens than any machine has
    room for.
    """

    num_slots: int = 16
    slot_tokens: int = 2048
    prefill_chunk: int = 256

    def __post_init__(self) -> None:
        check_integers(self, "num_slots", "slot_tokens", "prefill_chunk")
        check_positive(self, "num_slots", "slot_tokens", "prefill_chunk")
        check_at_most(self, num_slots=MOST_SLOTS, slot_tokens=MOST_TOKENS, prefill_chunk=MOST_TOKENS)


@dataclass(frozen=True, slots=True)
class EngineSettings(EngineSizes):
    """An engine's sizes, and which of its helps are switched on. None of them changes an answer.

    ``reuse_prefixes``: a prompt that begins like an earlier one is not computed again (pasta/engine/prefixes.py).
    ``prefill_ahead``: a conversation's next turn is prefilled while the engine is idle (pasta/engine/turns.py).
    ``jump_forward``: tokens that the grammar forces are fed without a step of their own.
    ``drafts``: the most tokens that are drafted for a thread in a step (pasta/engine/drafts.py); 0 is off.
    ``draft_heads``: the model's draft heads, if it has any, guess some of them; otherwise all are looked up.
    ``multi_step``: on a CPU, steps that write text or topics run several at a time (pasta/engine/multi_step.py).
    ``cuda_graphs``: captured steps (pasta/engine/graphs.py): ``auto`` on a GPU where the model allows it, ``on`` or an
    error, ``off``.
    ``compile``: ``on`` compiles captured steps (pasta/engine/compiling.py), or is an error; a logit's last bits may
    differ from those of other steps.

    Raises ValueError if ``drafts`` is negative, ``cuda_graphs`` or ``compile`` another word, or a value is of
    another type.
    """

    reuse_prefixes: bool = True
    prefill_ahead: bool = True
    jump_forward: bool = True
    drafts: int = 8
    draft_heads: bool = True
    multi_step: bool = True
    cuda_graphs: Literal["auto", "on", "off"] = "auto"
    compile: Literal["off", "on"] = "off"

    def __post_init__(self) -> None:
        EngineSizes.__post_init__(self)
        check_integers(self, "drafts")
        check_not_negative(self, "drafts")
        check_switches(self, "reuse_prefixes", "prefill_ahead", "jump_forward", "draft_heads", "multi_step")
        if self.cuda_graphs not in ("auto", "on", "off"):
            raise ValueError(f"cuda_graphs: {self.cuda_graphs!r}, expected auto, on or off")
        if self.compile not in ("off", "on"):
            raise ValueError(f"compile: {self.compile!r}, expected off or on")
