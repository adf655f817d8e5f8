"""What the tests' own configuration promises (tests/conftest.py)."""

import subprocess
import sys

START = "import ray; ray.init(address='local', num_cpus=1, include_dashboard=False)"


def test_a_unit_test_cannot_start_ray():
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "only-tests-marked-e2e-start-Ray" in done.stderr
