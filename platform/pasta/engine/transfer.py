"""Copies between the host and its device: to the device without waiting, and one copy back a step."""

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on the host from which a copy to ``device`` need not wait for work that the device still has.

    torch's allocator does not reuse pinned memory before copies from it are done.
    """
    return tensor.pin_memory() if device.type == "cuda" else tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host without waiting for the device."""
    return pinned(tensor, device).to(device, non_blocking=True)


def fetch(*told: Tensor) -> list[Any]:
    """Copy tensors of 64-bit integers or of floats to the host, all at once; returns each as nested lists."""
    if len(told) == 1 and told[0].dtype == torch.long:
        return [copy_back(told[0]).tolist()]
    # A double holds any of the floats exactly, and its bits are an integer.
    parts = [t if t.dtype == torch.long else t.double().view(torch.long) for t in told]
    packed = copy_back(torch.cat([part.reshape(-1) for part in parts]))
    found, start = [], 0
    for t in told:
        own = packed[start : start + t.numel()]
        start += t.numel()
        found.append(
            (own if t.dtype == torch.long else own.view(np.float64)).reshape(tuple(t.shape)).tolist()
        )
    return found


def copy_back(packed: Tensor) -> npt.NDArray[np.int64]:
    """Wait until the device has computed ``packed``, and copy it. Nothing else in a step waits for the device."""
    found: npt.NDArray[np.int64] = packed.cpu().numpy()
    return found


class Stopwatch:
    """Times the work given to a device between this object's making and ``stop``."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begun, self._ended = self._now(), None

    def stop(self) -> None:
        """Stop: later work is not timed."""
        self._ended = self._now()

    def seconds(self) -> float:
        """The seconds that the work took. It need not wait if something computed after ``stop`` has been fetched."""
        if self._device.type == "cuda":
            return float(self._begun.elapsed_time(self._ended)) / 1000
        return float(self._ended - self._begun)

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
