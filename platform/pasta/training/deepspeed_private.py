"""The only module of training that uses a private API of DeepSpeed, written against deepspeed 0.19.8.

tests/training/test_private.py fails, and names that version, when it is gone:

- ``comm.torch.build_shm_op``: compile and load kernels by which ranks of one machine reduce in shared memory.
- ``runtime.zero.muon.muon_optimizer``, which it imports, and ``runtime.compiler.compile``, which decorates functions
  in there.
"""

import importlib
import sys
from collections.abc import Mapping
from typing import Any

MUON = "deepspeed.runtime.zero.muon.muon_optimizer"


def compile_no_communication() -> None:
    """Keep DeepSpeed from compiling those kernels, a minute at first use: inference alone calls them."""
    communication().build_shm_op = lambda: None


def import_no_compiler(config: Mapping[str, Any]) -> None:
    """Keep DeepSpeed from compiling functions of an optimizer that ``config`` does not name. It imports that optimizer
    to see whether it is in use, and with it torch's compiler: a second in each worker."""
    if MUON in sys.modules or "muon" in str(config.get("optimizer")).lower():
        return
    compiler: Any = importlib.import_module("deepspeed.runtime.compiler")
    compile = compiler.compile
    compiler.compile = lambda *_, **__: lambda function: function
    try:
        importlib.import_module(MUON)
    finally:
        compiler.compile = compile


def communication() -> Any:
    """The module ``deepspeed.comm.torch``. As an attribute of ``deepspeed.comm`` that name is torch itself."""
    return importlib.import_module("deepspeed.comm.torch")
