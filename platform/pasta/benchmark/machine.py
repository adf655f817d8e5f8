"""Describes the machine, the code and the model of a measurement."""

import datetime
import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pasta

if TYPE_CHECKING:
    import torch


#: The instructions that products of floats and of 8-bit integers take, by their beginnings, as Linux names them.
_INSTRUCTIONS = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "avx_vnni",
    "amx_",
    "sve",
    "bf16",
    "i8mm",
    "asimddp",
)


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_machine(
    device: "torch.device | None" = None, formats: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Processor and its instructions for products, whether the decoding kernels are there, cores, memory, ``device`` if
    it is a GPU, versions, date (UTC) and load of this machine; and the number ``formats`` that models have here, if
    there are any."""
    import torch
    import transformers

    from pasta.engine import kernels

    described = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "instructions": sorted(
            word for word in set(kernels.instructions().split()) if word.startswith(_INSTRUCTIONS)
        ),
        "kernels": kernels.ready(),
        "cores": num_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "pasta": pasta.__version__,
    }
    if device is not None and device.type == "cuda":
        described["gpu"] = torch.cuda.get_device_name(device)
        described["cuda"] = torch.version.cuda
    if formats:
        described["formats"] = dict(formats)
    return described


def machine_identity(device: "torch.device | None" = None) -> dict[str, Any]:
    """The part of ``describe_machine`` that times and last bits depend on, and that stays from run to run."""
    machine = describe_machine(device)
    names = ("processor", "instructions", "kernels", "gpu", "torch", "transformers")
    return {name: machine.get(name) for name in names}


def code_fingerprint(*more: Path) -> str:
    """A digest of the sources that affect a measurement: the benchmarks (without their reports), the packages they use,
    and the sources in the directories ``more``."""
    root = Path(pasta.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(file for directory in more for file in directory.rglob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    for package in ("lang", "interpreter", "engine", "data/atlas", "candidates", "benchmark"):
        for file in sorted((root / package).rglob("*")):
            if file.suffix not in (".py", ".cpp", ".h", ".csv", ".toml") or "report" in (
                file.stem,
                file.parent.name,
            ):
                continue
            digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def model_fingerprint(directory: Path) -> str:
    """A digest of a model directory's weights, configuration and tokenizer."""
    digest = hashlib.sha256()
    for file in sorted(directory.iterdir()):
        if file.suffix in {".json", ".safetensors", ".bin", ".jinja", ".model"}:
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()[:16]


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
