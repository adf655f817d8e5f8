"""A calibration says what steps together cost where the engine runs them, and nothing where it does not."""

import pytest

from pasta.benchmark.calibrate import calibration_of

ABOUT = {"model": "m", "dtype": "bfloat16", "device": "cpu", "threads": 1}


@pytest.mark.parametrize(
    ("together", "expected"), [({"1 1 64": [0.4, 0.3]}, 0.0004), ({}, None)], ids=["some", "none"]
)
def test_steps_together_are_in_it_if_there_were_any(together, expected):
    rounds = [
        {
            "steps": {"1 1 64": [0.7, 0.6]},
            "together": together,
            "prefill": {"16 0": 1.0},
            "facade": [1.0, 0.9],
        }
    ]
    (point,) = calibration_of(rounds, **ABOUT).steps
    assert (point.seconds, point.together_s) == (0.0007, expected)
