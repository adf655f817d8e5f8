"""Decoding kernels: those for this machine's CPU, in ``cpp/``, and those for a GPU, in ``triton_kernels.py``.

``python -m jobs.kernels`` builds those for the CPU (a minute; a C++ compiler is needed) and keeps the library in
``~/.cache/pasta``, under a name that changes with the sources, torch and the CPU. Loading a model never compiles
anything: without the library torch's own operators decode, as they do on other CPUs.
"""

import functools
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from pasta.errors import UserError, first_line

_SOURCES = Path(__file__).parent / "cpp"
_log = logging.getLogger(__name__)


def library() -> Path:
    """The path of the library for these sources, this torch and this CPU."""
    digest = hashlib.blake2b(f"{torch.__version__} {instructions()}".encode(), digest_size=8)
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return Path.home() / ".cache" / "pasta" / f"kernels-{digest.hexdigest()}.so"


def instructions() -> str:
    """A description of this CPU's instruction sets, in one line."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.lower().startswith(("flags", "features")):  # as x86 and ARM call them
                return line
    return platform.processor()


def why_not_here() -> str:
    """Say why this CPU cannot run the kernels; empty if it can."""
    if platform.system() != "Linux":
        return "they are built on Linux only"
    return "" if _wide() or cpu_has("avx2", "fma3") else "this CPU lacks their instructions (AVX2 with FMA)"


def cpu_has(*features: str) -> bool:
    """Whether this CPU has all of these instruction sets, as ``torch.cpu.get_capabilities`` calls them."""
    known = torch.cpu.get_capabilities()
    return all(known.get(feature, False) for feature in features)


def _wide() -> bool:
    """Whether the kernels use AVX-512 here; without its products of 8-bit numbers they do better with AVX2."""
    return cpu_has("avx512_f", "avx512_vnni")


@functools.cache
def ready() -> bool:
    """Load the library if it is built; returns whether the operators ``torch.ops.pasta`` are there."""
    if why_not_here():
        return False
    built = library()
    if not built.is_file():
        _log.warning(
            "the kernels for this CPU are not built: decoding is slower than it could be; "
            "build them once with: python -m jobs.kernels"
        )
        return False
    try:
        torch.ops.load_library(str(built))
    except OSError as error:
        _log.warning("the kernels for this CPU cannot be loaded (%s): decoding without", first_line(error))
        return False
    return True


def runs(dtype: torch.dtype) -> bool:
    """Whether the kernels for this CPU are loaded and run on activations of this type."""
    if dtype == torch.bfloat16 and _wide() and not cpu_has("avx512_bf16"):
        return False
    return dtype in (torch.float32, torch.bfloat16) and ready()


def run_on(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this device has kernels for activations of this type. Triton compiles a GPU's when they are first needed,
    in seconds, and keeps them on disk."""
    if device.type != "cuda":
        return device.type == "cpu" and runs(dtype)
    is_new_enough = torch.cuda.get_device_capability(device) >= (8, 0)
    return dtype in (torch.float32, torch.bfloat16) and is_new_enough and _triton_compiles(device)


@functools.cache
def _triton_compiles(device: torch.device) -> bool:
    """Whether Triton compiles here: it needs a C compiler and Python's headers."""
    why = "triton is not installed"
    if find_spec("triton") is not None:
        try:
            _for_gpus().try_out(device)
            why = ""
        except Exception as error:  # its own, the compiler's or the system's
            why = first_line(error)
    if why:
        _log.warning("the kernels for GPUs cannot be used (%s): decoding is slower than it could be", why)
    return not why


def operators(device: torch.device) -> Any:
    """The kernels by their names, for tensors on this device."""
    return torch.ops.pasta if device.type == "cpu" else _for_gpus()


@contextmanager
def claimed_threads() -> Iterator[None]:
    """Have torch's own operators that this thread calls run in it alone; the kernels for this CPU keep all threads."""
    torch.ops.pasta.claim_threads(True)
    try:
        yield
    finally:
        torch.ops.pasta.claim_threads(False)


def _for_gpus() -> Any:
    from pasta.engine import triton_kernels  # triton is needed on GPUs alone

    return triton_kernels


def build_extension() -> Path:
    """Compile the library unless it is there; returns where it is.

    Raises ``UserError`` if this CPU cannot run it, or there is no compiler that can.
    """
    from torch.utils import cpp_extension

    if why := why_not_here():
        raise UserError(f"kernels: {why}; decoding works without")
    built = library()
    if built.is_file():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    # Moved into place when it is whole: others may be loading or building it.
    handle, made = tempfile.mkstemp(suffix=".so", dir=built.parent)
    os.close(handle)
    command = [
        cpp_extension.get_cxx_compiler(),
        *("-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-pthread", "-w"),
        *(() if _wide() else ("-mno-avx512f",)),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-isystem{path}" for path in cpp_extension.include_paths()),
        str(_SOURCES / "kernels.cpp"),
        *(f"-L{path}" for path in cpp_extension.library_paths()),
        *("-ltorch_cpu", "-lc10", "-o", made),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            # The linker's own words, "failed: No space left on device", stand before "error: ld returned 1".
            lines = [line.strip() for line in done.stderr.splitlines()]
            said = next(
                (line for line in lines if "error" in line.lower() or "failed:" in line), "it said nothing"
            )
            raise UserError(f"kernels: {command[0]} failed ({said}); decoding works without")
        os.replace(made, built)
    except OSError as error:
        raise UserError(f"kernels: {command[0]!r} cannot be run ({error}); decoding works without") from None
    finally:
        Path(made).unlink(missing_ok=True)
    return built
