"""The kernels for this CPU, in tests."""

import pytest

from pasta.engine import kernels

needs_kernels = pytest.mark.skipif(bool(kernels.why_not_here()), reason=kernels.why_not_here())


def built() -> None:
    """Have them: built once a machine, which takes a minute, and loaded."""
    kernels.build_extension()
    if not kernels.ready():
        kernels.ready.cache_clear()
    assert kernels.ready()
