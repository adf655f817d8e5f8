"""Whether the caches of engines fit this machine and their models: told before anything starts, without torch."""

import os
from collections.abc import Iterable, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from pasta.engine.families import check_architecture, context_positions, read_model_config
from pasta.engine.section import SCRATCH
from pasta.engine.snapshots import model_directory
from pasta.errors import UserError
from pasta.sizes import EngineSizes

_CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")


def machine_memory() -> int:
    """The bytes of memory that processes here can have: the machine's, or the container's if that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(physical, int(_CONTROL_GROUP.read_text()))
    except (OSError, ValueError):  # no control group, or one without a limit
        return physical


def check_cache(
    sizes: EngineSizes,
    models: Iterable[tuple[str, str]],
    device: str,
    *,
    engines: int = 1,
    sees_gpus: bool = True,
) -> None:
    """Raise ``UserError``, naming the key, if the caches of ``engines`` of each model cannot fit into this machine.

    ``models`` are directories or names with their number formats. Those that are not here are not judged, nor are
    engines on GPUs, which find out as they start.
    """
    if device.startswith("cuda") or (device == "auto" and sees_gpus and glob("/dev/nvidia[0-9]*")):
        return
    token = sum(_token_bytes(source, dtype) for source, dtype in models)
    most = machine_memory() // max(engines * token, 1)
    if sizes.num_slots * (sizes.slot_tokens + SCRATCH) <= most:
        return
    needed = engines * token * sizes.num_slots * (sizes.slot_tokens + SCRATCH)
    of = "its cache takes" if engines == 1 else f"the caches of {engines:,} engines take"
    raise UserError(
        f"engine.num_slots: {sizes.num_slots} of engine.slot_tokens {sizes.slot_tokens}: {of} {needed / 1e9:,.0f} GB, "
        f"but this machine has {machine_memory() / 1e9:,.0f} GB; expected at most {most:,} tokens of cache in all slots"
    )


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
