"""The other processes of an actor that shares its models with them: actors in its own placement group.

A Decoder is such an actor with ``decoder.tensor_parallel``, a job's worker with ``workers.tensor_parallel``. The actor
itself is rank 0 and has the engines (pasta/engine/ranks.py). All of its processes live and die together. When one ends,
its connections close, and the others stop waiting for it. ``Followers.check`` notices an ended process while nothing is
decoded.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from serve import priority
from serve.imports import uncollected

if TYPE_CHECKING:
    from pasta.engine.ranks import Ranks

#: Where the processes run: on one node.
STRATEGY = "STRICT_PACK"
logger = logging.getLogger(__name__)


def bundles(
    size: int, num_cpus: float, num_gpus: float, resources: Mapping[str, float] | None = None
) -> list[dict[str, float]]:
    """The bundles of the placement group of an actor and its followers, ``size`` processes in all: what each of them
    reserves."""
    bundle = {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}
    return [{name: amount for name, amount in bundle.items() if amount}] * size


class Follower:
    """Runs its part of the models as rank 0 tells it to."""

    def follow(self, rank: int, size: int, rendezvous: str, cwd: str, threads: int) -> None:
        """Follow until another rank has ended. It never returns: the process ends, and its connections with it."""
        try:
            os.chdir(cwd)  # relative paths mean the same as to rank 0
            with uncollected():
                import torch

                import pasta.engine.device  # noqa: F401  # what following needs
                from pasta.engine.ranks import follow
            torch.set_num_threads(threads)
            ranks = _meet(rank, size, rendezvous)
            with priority.starting(batch=False):  # this thread too: every step waits for it
                follow(ranks)
        except BaseException as error:
            logger.warning("rank %d ends: %s", rank, error)
        finally:
            os._exit(1)


class Followers:
    """Starts the other ranks of this actor, whose placement group has a bundle for each."""

    def __init__(self, size: int, *, threads: int, **options: Any) -> None:
        """``options`` are Ray's for each of them: ``num_cpus``, ``num_gpus``, ``resources``."""
        self._size = size
        group = get_current_placement_group()
        assert group is not None, "an actor of several processes has one"
        self._folder = tempfile.TemporaryDirectory(prefix="pasta-ranks-")  # gone with this object
        self._rendezvous = str(Path(self._folder.name) / "rendezvous")
        actor = ray.remote(Follower)
        self._actors = [
            actor.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank), **options
            ).remote()
            for rank in range(1, size)
        ]
        self._following = [
            actor.follow.remote(rank, size, self._rendezvous, os.getcwd(), threads)
            for rank, actor in enumerate(self._actors, 1)
        ]

    def meet(self) -> "Ranks":
        """Wait until all ranks have met; returns this one, number 0."""
        return _meet(0, self._size, self._rendezvous)

    def check(self) -> None:
        """Raise ``RuntimeError`` if one of the others has ended."""
        ended, _ = ray.wait(self._following, timeout=0)
        if ended:
            raise RuntimeError("a process that shares the model has ended")


def _meet(rank: int, size: int, rendezvous: str) -> "Ranks":
    from pasta.engine.ranks import Ranks

    # All ranks are on one node: nobody else can reach them.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    return Ranks(rank, size, Path(rendezvous))
