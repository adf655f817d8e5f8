"""Start sooner: import less, and import without the garbage collector."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_QUIET = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


def without_torch() -> None:
    """Have transformers load tokenizers as it does where torch is not installed: the same classes, the same tokens.

    transformers imports torch beside them, which a process that holds no model pays for with 190 MB and seconds. For
    the whole process, for good: for a process of its own, before anything has imported either (otherwise nothing
    changes). torch itself can still be imported, but transformers' models cannot.
    """
    if {"torch", "transformers"} & set(sys.modules):
        return
    said = os.environ.get(_QUIET)
    os.environ[_QUIET] = "1"  # else it advises to install torch
    sys.modules["torch"] = None  # type: ignore[assignment]  # what Python finds here, it does not look for
    try:
        from transformers import AutoConfig, AutoTokenizer  # noqa: F401  # by now it has looked for torch
    finally:
        del sys.modules["torch"]
        if said is None:
            del os.environ[_QUIET]
        else:
            os.environ[_QUIET] = said


@contextmanager
def uncollected() -> Iterator[None]:
    """Import large packages a fifth faster: what they make is no garbage, so none is looked for meanwhile.

    Nor is it later (``gc.freeze``): collections stay short.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
