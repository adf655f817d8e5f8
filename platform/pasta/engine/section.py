"""The ``engine`` section of a configuration."""

import re
from dataclasses import dataclass
from typing import Any

from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.sizes import EngineSettings, EngineSizes

#: Float formats by torch's names.
DTYPES = ("float32", "bfloat16", "float16")
#: Formats whose weights are integers, by name.
INTEGERS = ("int8", "int4")
#: Number formats that an engine decodes in: a float format, the fastest one of this machine, or linear layers of 8 or 4
#: bits (``fp8`` on GPUs).
FORMATS = ("auto", *DTYPES, *INTEGERS, "fp8")
#: Why a model computes in a format that was named.
AS_CONFIGURED = "as configured"
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")
#: The engine's scratch place in each slot, in tokens.
SCRATCH = 1
#: What a command's ``--dtype`` may be, for its help.
FORMATS_HELP = f"one of {', '.join(FORMATS)} (fp8: on CUDA GPUs)"


def check_dtype(name: str) -> None:
    """Raise ``UserError`` for a name that is none of ``DTYPES``."""
    if name not in DTYPES:
        raise UserError(f"dtype: {name!r}, expected one of {', '.join(DTYPES)}")


def check_format(name: str, key: str = "dtype") -> None:
    """Raise ``UserError``, naming ``key``, for a name that is none of ``FORMATS``."""
    if name not in FORMATS:
        raise UserError(f"{key}: {name!r}, expected one of {', '.join(FORMATS)}")


def check_device(name: str, key: str = "device") -> None:
    """Raise ``UserError``, naming ``key``, for a name that no machine has as a device. Whether this machine has the
    device is checked elsewhere."""
    if not _DEVICE.fullmatch(name):
        raise UserError(f"{key}: {name!r}, expected auto, cpu, cuda or cuda:N")


def check_tensor_parallel(
    size: int,
    model: Any,
    settings: EngineSettings,
    dtype: str,
    *,
    key: str = "tensor_parallel",
    dtype_key: str = "dtype",
) -> None:
    """Raise ``UserError``, naming the key, if ``size`` processes cannot share a model of configuration ``model``.

    ``key`` and ``dtype_key`` are the names of ``size`` and ``dtype`` in the caller's configuration.
    """
    if size == 1:
        return
    if (heads := model.num_key_value_heads) % size:
        raise UserError(
            f"{key}: {size} processes cannot share the model's {heads} key-value heads; expected a divisor of {heads}"
        )
    if "colwise_gather_output" in (model.base_model_tp_plan or {}).values():
        raise UserError(
            f"{key}: {size}, but the attention of {model.model_type} models cannot be shared by processes; expected 1"
        )
    # Other formats' layouts cannot be cut into parts.
    if dtype not in (floats := ("auto", *DTYPES)):
        raise UserError(f"{dtype_key}: {dtype!r}, but {key} is {size}; expected one of {', '.join(floats)}")
    # Captured steps would include sums over the ranks that the other processes do not run.
    for name, refused, expected in (("cuda_graphs", "on", "auto or off"), ("compile", "on", "off")):
        if getattr(settings, name) == refused:
            raise UserError(f"engine.{name}: {refused!r}, but {key} is {size}; expected {expected}")


def answer_limits() -> Limits:
    """The limits of a job's answers if none are set: an answer may take half of the default slot."""
    return Limits(max_tokens=EngineSizes().slot_tokens // 2)


def check_slot(slot_tokens: int, max_tokens: int) -> None:
    """Raise ValueError, naming the key, if a slot could not hold the longest answer after any prompt."""
    if slot_tokens < (least := 1 + max_tokens + SCRATCH):
        raise ValueError(
            f"engine.slot_tokens {slot_tokens}: expected at least {least}, for a slot holds an answer of "
            f"limits.max_tokens ({max_tokens}) and its prompt"
        )


def check_here(
    settings: EngineSettings,
    dtype: str,
    device: str,
    *,
    key: str = "engine.",
    model_key: str = "engine.",
    sees_gpus: bool = True,
) -> None:
    """Raise ``UserError``, naming the key, if engines on this machine cannot run in this format, on this device or with
    these switches. For engines that certainly run on this machine.

    ``key`` goes before the names of the settings, ``model_key`` before ``dtype`` and ``device``. Engines that do not
    see the machine's GPUs, if it has any, are not judged.
    """
    switched_on = "on" in (settings.cuda_graphs, settings.compile)
    if dtype in ("auto", *DTYPES) and device in ("auto", "cpu") and not switched_on:
        return  # every machine can, and torch takes seconds to import
    from pasta.engine.supported import check_runs

    check_runs(settings, dtype, device, key=key, model_key=model_key, sees_gpus=sees_gpus)


@dataclass(frozen=True, slots=True)
class EngineSection(EngineSettings):
    """The decoding engine of each worker: its settings, and where and in which number format it runs.

    In float32 a sample depends on its seed alone. In bfloat16 the last bits of a logit depend on what is decoded
    beside it, so that another ``num_slots`` may draw another token; the same configuration draws the same.
    """

    dtype: str = "float32"
    device: str = "auto"

    def __post_init__(self) -> None:
        EngineSettings.__post_init__(self)
        check_format(self.dtype)
        check_device(self.device)
