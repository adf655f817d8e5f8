"""Whether engines fit this machine and their models: told before anything starts, without torch."""

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

from pasta.engine.families import check_architecture, context_positions, read_model_config
from pasta.engine.section import SCRATCH
from pasta.engine.snapshots import model_directory, num_weights
from pasta.errors import UserError
from pasta.sizes import EngineSizes

#: Where a container finds its limit, in the second and the first version of control groups.
_CONTROL_GROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
#: The bytes of a number in memory, by format; of ``auto`` those of the smallest that it may choose.
_BYTES = {"float32": 4.0, "int8": 1.0, "fp8": 1.0, "int4": 0.5}
_OTHERWISE = 2.0
#: Of a slot's size that nobody has set: its most tokens, and what part of the memory beside the weights all slots get.
_MOST_UNASKED, _PART_UNASKED = 32_768, 0.5
_GPUS = "/dev/nvidia[0-9]*"


def machine_memory() -> int:
    """The bytes of memory that processes here can have: the machine's, or the container's if that is less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in _CONTROL_GROUPS:
        with suppress(OSError, ValueError):  # no control group, or one without a limit
            found.append(int(limit.read_text()))
    return min(found)


def check_engine_memory(
    sizes: EngineSizes,
    models: Sequence[tuple[str, str]],
    device: str,
    *,
    engines: int = 1,
    beside: int = 0,
    sees_gpus: bool = True,
    key: str = "model",
) -> None:
    """Raise ``UserError``, naming the key, if ``engines`` of each model, their weights and caches, cannot fit into this
    machine ``beside`` so many bytes of other things.

    ``models`` are directories or names with their number formats; ``key`` names them. Those that are not here are not
    judged, nor are engines on GPUs, which find out as they start.
    """
    if _on_gpu(device, sees_gpus):
        return
    memory, weights = machine_memory(), engines * sum(weight_bytes(*model) for model in models)
    num = engines * len(models)
    if (left := memory - beside - weights) <= 0:
        others = f", and the processes {beside / 1e9:.1f} GB" if beside else ""
        raise UserError(
            f"{key}: {', '.join(source for source, _ in models)}: the weights of {_engines(num)} take "
            f"{weights / 1e9:.1f} GB{others}, but this machine has {memory / 1e9:.1f} GB; expected smaller models, "
            "fewer engines, or dtype int8 or int4"
        )
    token = engines * sum(_token_bytes(*model) for model in models)
    most = left // max(token, 1)
    if sizes.num_slots * (sizes.slot_tokens + SCRATCH) <= most:
        return
    needed = token * sizes.num_slots * (sizes.slot_tokens + SCRATCH)
    raise UserError(
        f"engine.num_slots: {sizes.num_slots} of engine.slot_tokens {sizes.slot_tokens}: the caches of {_engines(num)} "
        f"take {needed / 1e9:,.1f} GB, but this machine has {left / 1e9:,.1f} GB for them; expected at most {most:,} "
        "tokens of cache in all slots"
    )


def fitting_slot_tokens(
    num_slots: int,
    model: tuple[str, str],
    device: str,
    *,
    engines: int = 1,
    processes: int = 1,
    beside: int = 0,
) -> int:
    """The tokens of a slot, of ``num_slots`` in each of the ``engines``, where nobody says how many.

    They are as many as the ``model``, a directory or a name with its number format, has positions, if half of the
    memory beside its weights and ``beside`` has room for them, and 32,768 at most; else a power of two that has. Never
    less than the default, if it has as many positions: whether that fits is for ``check_engine_memory``. On GPUs each
    of an engine's ``processes`` has one; without nvidia-smi, or the model, it is the default.
    """
    source, dtype = model
    size, positions = EngineSizes().slot_tokens, num_positions(source)
    if positions is None:
        return size
    if _on_gpu(device):
        memory, engines = processes * _gpu_memory(), 1
    else:
        memory = machine_memory() - beside
    left = memory - engines * weight_bytes(source, dtype)
    room = int(_PART_UNASKED * left) // (engines * num_slots * max(_token_bytes(source, dtype), 1))
    while 2 * size <= min(room, _MOST_UNASKED):
        size *= 2
    return min(size, positions)


def _on_gpu(device: str, sees_gpus: bool = True) -> bool:
    return device.startswith("cuda") or (device == "auto" and sees_gpus and bool(glob(_GPUS)))


def _gpu_memory() -> int:
    """The bytes of memory of the smallest GPU; 0 if nvidia-smi does not tell."""
    query = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        return min(map(int, told.split())) << 20
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


def _engines(number: int) -> str:
    return "one engine" if number == 1 else f"{number:,} engines"


def num_positions(source: str) -> int | None:
    """How many positions the model at a directory or of a name has; None if it is not on this machine."""
    config = _config(source)
    return None if config is None else context_positions(config)


def check_positions(slot_tokens: int, models: Sequence[str]) -> None:
    """Raise ``UserError``, naming the key, if slots hold more tokens than any of these ``models`` has positions.

    ``models`` are directories or names. Unless all of them are here, nothing is judged.
    """
    known = [(positions, source) for source in models if (positions := num_positions(source)) is not None]
    if len(known) < len(models):
        return
    most, longest = max(known)
    if slot_tokens > most:
        raise UserError(
            f"engine.slot_tokens: {slot_tokens}, but {longest} has {most} positions, and no answer goes past them; "
            f"expected at most {most}"
        )


def weight_bytes(source: str, dtype: str) -> int:
    """What a model's weights take at least; 0 if it is not on this machine."""
    directory = model_directory(source)
    return 0 if directory is None else int(num_weights(directory) * _BYTES.get(dtype, _OTHERWISE))


def _token_bytes(source: str, dtype: str) -> int:
    """What a token of cache takes at least (``auto`` may be bfloat16); 0 if the model is not on this machine."""
    if (config := _config(source)) is None:
        return 0
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values: int = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim
    return values * (4 if dtype == "float32" else 2)


def _config(source: str) -> Any:
    """The model's configuration, of a family that the engine knows; None if the model is not on this machine."""
    if (directory := model_directory(source)) is None:
        return None
    config = read_model_config(directory)
    check_architecture(config, source)
    return config
