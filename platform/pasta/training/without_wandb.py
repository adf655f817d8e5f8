"""TRL imports Weights & Biases wherever that is installed, which takes a third of a second in each worker. Training
logs by itself (pasta.tracking), and only where runs are tracked."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType


@contextmanager
def without_wandb() -> Iterator[None]:
    """Import TRL's trainers in this block: they get a W&B in which no run is active. Outside it, wandb is wandb."""
    if "wandb" in sys.modules:
        yield
        return
    stand_in = ModuleType("wandb")
    stand_in.__spec__ = ModuleSpec("wandb", None)
    stand_in.run = None  # type: ignore[attr-defined]  # the one thing that TRL asks for unless it reports there
    sys.modules["wandb"] = stand_in
    try:
        yield
    finally:
        del sys.modules["wandb"]
