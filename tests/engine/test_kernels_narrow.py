"""The kernels for CPUs with AVX2, run on one with AVX-512: the tests of the kernels pass with them, too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pasta.engine import kernels

# In a process that takes this CPU for one without AVX-512.
_TESTS = """
import sys
import pytest
from pasta.engine import kernels
kernels._wide = lambda: False
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-x", "tests/engine/test_kernels.py"]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not kernels._wide(), reason="this CPU has no others")
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param("", id="AVX2"),
        # The instruction of AVX-VNNI as AVX-512 encodes it, so that this CPU can run it.
        pytest.param("""'-DPASTA_VNNI="%{evex%} vpdpbusd"'""", id="AVX-VNNI"),
    ],
)
def test_kernels_of_a_narrower_cpu_pass_the_same_tests(flags, tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text(f'#!/bin/sh\nexec c++ "$@" -O1 {flags}\n', encoding="utf-8")
    compiler.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", _TESTS],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"HOME": str(tmp_path), "CXX": str(compiler)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert list(tmp_path.glob(".cache/pasta/kernels-*.so"))
