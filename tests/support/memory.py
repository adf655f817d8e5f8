"""Memory of the tests' own process.

TorchScript registers every forward that is recorded, with the key-value cache in it, until the process ends: 13 MB for
the smallest engine, of which the tests make hundreds.
"""

import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import Any

GROWTH = 100 * 1024 * 1024
#: Of glibc's malloc.h.
M_MMAP_THRESHOLD = -3


def return_large_blocks() -> None:
    """Let the allocator give each block of 1 MiB or more back to the system as soon as it is freed.

    Otherwise it keeps blocks of up to 32 MiB, the more the larger those were that have been freed: a model's layers.
    """
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1024 * 1024)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def recorded_modules() -> list[Any]:
    """Every ``torch.jit.ScriptModule`` that is alive."""
    import torch

    kinds: list[type] = [torch.jit.ScriptModule]
    for kind in kinds:
        kinds += kind.__subclasses__()
    # An object refers to its class: asking for these is a loop in C over millions of objects, not one in Python.
    return [each for each in gc.get_referrers(*kinds) if isinstance(each, torch.jit.ScriptModule)]


class Recordings:
    """Frees recorded forwards of engines that are gone, whenever the process has grown by ``GROWTH``.

    And, where a file's tests end, what they shared: the allocator keeps the memory of a model that is gone, and the
    process would stay as large as its largest file made it.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._began = 0  # what was resident as this file's tests began

    def free(self) -> None:
        """Free them, unless another recorded forward is alive: it would lose its code."""
        if "torch" in sys.modules and resident() >= self._seen + GROWTH:
            self._free()

    def file_ends(self) -> None:
        """Free them, and what else is gone, if this file's tests have left the process larger."""
        if "torch" in sys.modules and resident() >= self._began + GROWTH:
            self._free()
        self._began = resident()

    def _free(self) -> None:
        import torch

        gc.collect()
        if not recorded_modules():
            torch._C._jit_clear_class_registry()  # as torch's own tests do; scripted functions stay
        ctypes.CDLL(None).malloc_trim(0)
        self._seen = resident()
