"""Training on a CPU uses the memory of freed tensors again."""

import subprocess
import sys

import pytest

_PAGES_FAULTED = """
import resource, sys, torch
from pasta.training.memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
for number in range(30):
    if number == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
def test_memory_of_freed_tensors_is_not_mapped_anew():
    def faults(how):
        command = [sys.executable, "-c", _PAGES_FAULTED, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    given_back, kept = faults("given back"), faults("kept")
    assert given_back > 20 * 2**26 / 2**21, "by default every tensor of 64 MiB is mapped anew"
    assert kept < given_back / 10
