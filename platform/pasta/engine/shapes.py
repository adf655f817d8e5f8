"""The shape of a step: all sizes that its tensors follow from, and how one buffer of integers holds its inputs."""

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pasta.engine.sampling import NUM_CHOICES

_Buffer = TypeVar("_Buffer", Tensor, npt.NDArray[np.int64])


class Shape(NamedTuple):
    """A forward of ``slots`` neighbouring slots B from slot ``first`` on, ``lanes`` tokens Q of each, the first
    ``keys`` tokens of each slot's cache, and ``rows`` rows of logits N; ``biased``: with biases of promises.

    A ``padded`` one (of a captured step) may have more of each than a step feeds. Of B·Q tokens a ``flat`` one feeds
    so many R to the layers between attention, slot by slot, and no padding; 0: these get all B·Q.
    """

    first: int
    slots: int
    lanes: int
    keys: int
    rows: int
    biased: bool
    padded: bool = False
    flat: int = 0

    @property
    def size(self) -> int:
        """How many integers a step takes."""
        return 4 * self.slots * self.lanes + (1 + NUM_CHOICES) * self.rows + self.flat

    def split(self, buffer: _Buffer) -> tuple[_Buffer, _Buffer, _Buffer, _Buffer]:
        """The parts of a buffer [size]: token, position, segment and place in the slot's cache of each fed token
        [4, B, Q]; which of these the rows of logits follow [N] (counted among the flat ones, if there are any); what
        these are chosen by [7, N]; which of B·Q are fed flat [R]."""
        fed = buffer[: 4 * self.slots * self.lanes].reshape(4, self.slots, self.lanes)
        return fed, self.wanted(buffer), self.numbers(buffer), self.fed_flat(buffer)

    def wanted(self, buffer: _Buffer) -> _Buffer:
        """The second part of a buffer, [N]."""
        fed = 4 * self.slots * self.lanes
        return buffer[fed : fed + self.rows]

    def numbers(self, buffer: _Buffer) -> _Buffer:
        """The third part of a buffer, [7, N]."""
        first = 4 * self.slots * self.lanes + self.rows
        return buffer[first : first + NUM_CHOICES * self.rows].reshape(NUM_CHOICES, self.rows)

    def fed_flat(self, buffer: _Buffer) -> _Buffer:
        """The last part of a buffer, [R]."""
        return buffer[self.size - self.flat : self.size]

    def padding(self, scratch: int) -> npt.NDArray[np.int64]:
        """The inputs of a step that feeds nothing: a token of no segment at the place ``scratch`` in every lane."""
        inputs = np.zeros(self.size, dtype=np.int64)
        fed, *_ = self.split(inputs)
        fed[2], fed[3] = -1, scratch
        return inputs
