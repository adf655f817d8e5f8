"""Lays the weights that the kernels for CPUs read in huge pages: a step reads all of them, and each page of 4 KB costs
it a look into the page tables (docs/notes/cpu-engine.md has what that is worth)."""

import logging
import mmap

import torch
from torch import nn

from pasta.engine.packing import Packed
from pasta.heap import trim_heap

_log = logging.getLogger(__name__)

#: What Linux calls a huge page on the CPUs that have kernels.
_HUGE = 2 << 20
#: Bytes of weights that have moved after which what they had before is given back.
_KEPT = 64 << 20


def use_huge_pages(model: nn.Module) -> None:
    """Move the weights of ``model`` that the kernels read, one after another, to memory for which Linux is asked to use
    huge pages. Whether it has any is its affair; where it cannot be asked, and with less than a page, all stays."""
    layers = [layer for layer in model.modules() if isinstance(layer, Packed) and layer.by_kernel]
    sizes = [-(-layer.num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE for layer in layers]
    if sum(sizes) < _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    try:
        mapped = mmap.mmap(-1, sum(sizes) + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapped.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        _log.info("weights do not lie in huge pages: %s", error)
        return
    memory = torch.frombuffer(mapped, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % _HUGE :]
    kept = 0
    for layer, size in zip(layers, sizes, strict=True):
        layer.move_weight(memory[: layer.num_bytes])
        memory, kept = memory[size:], kept + size
        if kept >= _KEPT:
            trim_heap()
            kept = 0
    trim_heap()
