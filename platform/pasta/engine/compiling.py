"""Compiled forwards (``compile: on``): torch.compile fuses a forward's small operators between its large products.

Compiling takes from seconds to minutes. So it is done for the sizes of the steps that are captured as the engine starts
(pasta/engine/graphs.py), and forwards of other sizes run operator by operator: nobody waits for a compiler.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from pasta.errors import UserError, first_line

_BACKEND = "inductor"
#: Sizes are symbols in compiled code, except those that are 1: a few variants serve all shapes. torch gives up after
#: eight variants by default.
_MOST_VARIANTS = 64


class CompiledForward:
    """A forward that is compiled for the sizes of the inputs that it gets while it is ``preparing``."""

    def __init__(self, forward: nn.Module) -> None:
        self.preparing = True
        self._plain = forward
        self._compiled: Any = torch.compile(forward, dynamic=True, backend=_BACKEND)
        self._ready: set[tuple[torch.Size, ...]] = set()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the forward. Raises ``UserError`` if it cannot be compiled here."""
        sizes = tuple(tensor.shape for tensor in inputs)
        out: tuple[Tensor, ...]
        if self.preparing:
            try:
                with torch._dynamo.config.patch(recompile_limit=_MOST_VARIANTS):
                    out = self._compiled(*inputs)
            except TorchDynamoException as error:
                raise UserError(
                    f"compile: 'on', but the model does not compile here ({first_line(error)}); expected off"
                ) from None
            self._ready.add(sizes)
        else:
            out = (self._compiled if sizes in self._ready else self._plain)(*inputs)
        return out
