"""What this machine can run. Used when a model is loaded, and for checks before anything starts. Imports torch, but no
model."""

import torch

from pasta.engine import quantising
from pasta.engine.packing import why_no_integers
from pasta.engine.section import INTEGERS
from pasta.errors import UserError
from pasta.sizes import EngineSettings


def resolve_device(name: str, key: str = "device") -> torch.device:
    """``auto`` is CUDA where there is one. Raises ``UserError``, naming ``key``, for a device that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"{key}: {name!r}, expected auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"{key}: {name!r}, but torch finds no CUDA device here; use cpu")
    return device


def why_not_format(name: str, device: torch.device) -> str:
    """Say why this device cannot run the number format; empty if it can."""
    if name in INTEGERS and device.type != "cuda":
        return why_no_integers(name, device)
    return quantising.why_not(name, device) if name in quantising.GPU_FORMATS else ""


def check_format_runs(name: str, device: torch.device, key: str = "dtype") -> None:
    """Raise ``UserError``, naming ``key``, if this device cannot run the number format."""
    if why := why_not_format(name, device):
        raise UserError(f"{key}: {name!r}, but {why}; use auto")


def why_not_captured(device: torch.device) -> str:
    """Say why no step can be captured on this device; empty if steps can be."""
    return "" if device.type == "cuda" else f"the model runs on {device.type}"


def check_captured(settings: EngineSettings, why: str, key: str = "") -> None:
    """Raise ``UserError`` if steps are to be captured, or compiled, and cannot be, which ``why`` explains.

    ``key`` goes before the names of the settings.
    """
    if settings.cuda_graphs == "on" and why:
        raise UserError(f"{key}cuda_graphs: 'on', but {why}; expected auto or off")
    if settings.cuda_graphs == "off":
        why = "cuda_graphs is off"
    if settings.compile == "on" and why:
        raise UserError(f"{key}compile: 'on', but steps are not captured: {why}; expected off")


def check_runs(
    settings: EngineSettings,
    dtype: str,
    device: str,
    *,
    key: str,
    model_key: str,
    sees_gpus: bool,
) -> None:
    """``section.check_here``, with torch."""
    if not sees_gpus and torch.cuda.is_available():
        return
    found = resolve_device(device, f"{model_key}device")
    check_format_runs(dtype, found, f"{model_key}dtype")
    check_captured(settings, why_not_captured(found), key)
