"""Whether the kernels for CPUs fetch weights ahead of their turn: measured on a model's own layers when it is loaded.

Some processors fetch a stream of weights sooner themselves, and what a program asks for beside that makes them slower
(a step of 8 rows by a fifth and more on one machine); others are the faster for it (docs/notes/cpu-engine.md). Results
are the same either way. The choice holds for the whole process: that of the model which was loaded last.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from pasta.engine.packing import Packed

_log = logging.getLogger(__name__)

#: Rows of the sizes of step that are measured, and how often each is in each way.
_SIZES, _ROUNDS = (1, 3, 8), 4
#: Layers up to so many bytes are measured: more than caches hold, and not long to read.
_BYTES = 256 << 20


@torch.inference_mode()
def choose_fetching(model: nn.Module) -> None:
    """Have the kernels fetch weights ahead where that is faster for this model's linear layers, on this machine, with
    the threads that torch has now. A model without layers that the kernels compute changes nothing."""
    layers: list[tuple[Packed, dict[int, Tensor]]] = []
    size = 0
    for layer in model.modules():
        if isinstance(layer, Packed) and layer.by_kernel and size < _BYTES:
            size += layer.num_bytes
            layers.append((layer, {rows: layer.example(rows) for rows in _SIZES}))
    if not layers:
        return

    def seconds(rows: int, ahead: bool) -> float:
        torch.ops.pasta.fetch_ahead(ahead, ahead, ahead)
        begun = time.perf_counter()
        for layer, examples in layers:
            layer(examples[rows])
        return time.perf_counter() - begun

    one, several, more = (pays(partial(seconds, rows)) for rows in _SIZES)
    torch.ops.pasta.fetch_ahead(one, several, more)
    _log.info(
        "weights are fetched ahead of their turn: with one row %s, several %s, more %s", one, several, more
    )


def pays(seconds: Callable[[bool], float]) -> bool:
    """Whether something takes fewer ``seconds`` with it (``True``) than without: the least of several rounds in turn,
    since other work only adds to a time."""
    rounds = [(seconds(False), seconds(True)) for _ in range(_ROUNDS)]
    without, with_it = map(min, zip(*rounds, strict=True))
    return with_it < without
