"""A Decoder of several threads has them spin briefly before they sleep."""

import os
import subprocess
import sys

import pytest

from serve.spinning import spin_briefly

NAME = "GOMP_SPINCOUNT"


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("threads", "environment", "expected"),
    [
        (2, {}, "1000"),
        (2, {"OMP_WAIT_POLICY": "PASSIVE"}, "1000"),
        (1, {}, None),
        (2, {"OMP_WAIT_POLICY": "active"}, None),
        (2, {NAME: "7"}, "7"),
    ],
)
def test_several_threads_spin_briefly_unless_the_environment_says_otherwise(
    monkeypatch, threads, environment, expected
):
    monkeypatch.setattr(os, "environ", dict(environment))
    spin_briefly(threads)
    assert os.environ.get(NAME) == expected


@pytest.mark.slow
def test_torch_s_threads_read_it_when_torch_is_imported():
    told = run("import torch", OMP_DISPLAY_ENV="verbose", **{NAME: "1000"}).stderr
    assert f"{NAME} = '1000'" in told, (
        "torch comes with another OpenMP: serve/spinning.py has no effect on it"
    )


@pytest.mark.slow
def test_a_decoder_s_module_loads_no_openmp_before_the_decoder_says_how_long_to_spin():
    code = "import serve.decoder.deployment, serve.followers; print('gomp' in open('/proc/self/maps').read())"
    assert run(code).stdout.strip() == "False"
