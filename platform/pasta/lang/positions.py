"""Where a parent's positions go on after a promise: the default rule, its alternatives, and how a model stores its
rule.

The rule is stored as ``pasta_positions`` in the model's ``tokenizer_config.json``, where training data, engine, service
and simulator read it. A model without the key follows the default.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from pasta.lang.document import ESTIMATE_STEP

Scheme = Literal["predicted-in-tens", "predicted", "fixed", "shared"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
DEFAULT: Scheme = "predicted-in-tens"
KEY = "pasta_positions"
#: Tokens that every chunk has room for under ``fixed``: the median of the atlas' estimates (their mean is 54).
FIXED_ROOM = 50


@dataclass(frozen=True, slots=True)
class Positions:
    """How many positions a parent leaves free for a chunk.

    - ``predicted-in-tens``: as many as the promise's estimate N says, a multiple of ten, and two for the chunk's tags;
    - ``predicted``: the same with N to the token: in training data the chunk's exact length;
    - ``fixed``: ``FIXED_ROOM`` and two, whatever N says;
    - ``shared``: none: parent and chunk go on at the same position.

    ``hint_factor`` multiplies what N reserves: an experiment on a trained model, not a property of it.
    """

    scheme: Scheme = DEFAULT
    hint_factor: float = 1.0

    @property
    def exact(self) -> bool:
        """Whether estimates are lengths to the token."""
        return self.scheme == "predicted"

    def room(self, estimate: int) -> int:
        """Positions between a promise's ``/>`` and its parent's next token, for a chunk of this estimate."""
        if self.scheme == "shared":
            return 0
        if self.scheme == "fixed":
            return FIXED_ROOM + 2
        return max(1, round(estimate * self.hint_factor)) + 2

    def largest(self, room: int) -> int:
        """The largest estimate that surely needs no more than ``room`` positions."""
        if self.scheme in ("shared", "fixed"):
            return 1 << 30 if self.room(1) <= room else 0
        return int((room - 2) / self.hint_factor)

    def estimates(self, largest: int) -> range:
        """The estimates that a promise may give, up to ``largest``."""
        step = 1 if self.exact else ESTIMATE_STEP
        return range(step, largest + 1, step)

    def written(self, estimate: int, length: int) -> int:
        """The estimate to write for a chunk of ``length`` tokens whose document gives ``estimate``."""
        return max(1, length) if self.exact else estimate
