"""The only module of training that uses a private API of DeepSpeed, written against deepspeed 0.19.8.

tests/training/test_private.py fails, and names that version, when it is gone:

- ``comm.torch.build_shm_op``: compile and load kernels by which ranks of one machine reduce in shared memory.
"""

import importlib
from typing import Any


def compile_no_communication() -> None:
    """Keep DeepSpeed from compiling those kernels, a minute at first use: inference alone calls them."""
    communication().build_shm_op = lambda: None


def communication() -> Any:
    """The module ``deepspeed.comm.torch``. As an attribute of ``deepspeed.comm`` that name is torch itself."""
    return importlib.import_module("deepspeed.comm.torch")
