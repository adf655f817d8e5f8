"""Memory of training on a CPU."""

import ctypes

#: glibc's numbers of parameters (malloc.h), and the most that one of them takes.
_TRIM_THRESHOLD, _MMAP_MAX, _MOST = -1, -4, 2**31 - 1


def keep_freed_memory() -> None:
    """Have glibc keep what tensors have freed for the next ones, of this process from now on.

    By default it gives large blocks back, and the system clears each of their pages before it lends them again: about
    an eighth of a training step's time. A process keeps the most that it has ever used. Other C libraries are left
    alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _MOST)
