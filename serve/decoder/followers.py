"""The other processes of a Decoder with ``tensor_parallel``: actors in the replica's own placement group.

The Decoder is rank 0 and has the engine (pasta/engine/ranks.py). All of its processes live and die together: one that
ends closes its connections, which ends the others' waiting; ``Followers.check`` notices it while nothing is decoded.
"""

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import ray
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from serve import priority
from serve.config import ServeConfig
from serve.imports import uncollected

if TYPE_CHECKING:
    from pasta.engine.ranks import Ranks

logger = logging.getLogger("ray.serve")


class Follower:
    """Runs its part of the model as rank 0 tells it to."""

    def follow(self, config: ServeConfig, rank: int, rendezvous: str) -> None:
        """Follow until another rank has ended. It never returns: the process ends, and its connections with it."""
        try:
            with uncollected():
                import torch

                from pasta.engine import EngineConfig, load_model
                from pasta.engine.ranks import follow
            torch.set_num_threads(config.decoder.threads)
            (model,) = config.models.values()
            loaded = load_model(
                model.location,
                dtype=model.dtype,
                device=model.device,
                sequential=model.mode == "sequential",
                ranks=_meet(config, rank, rendezvous),
            )
            with priority.starting_normal():  # this thread too: every step waits for it
                follow(loaded, EngineConfig.of(config.engine))
        except BaseException as error:
            logger.warning("rank %d ends: %s", rank, error)
        finally:
            os._exit(1)


class Followers:
    """Starts the other ranks of this replica, whose placement group has a bundle for each."""

    def __init__(self, config: ServeConfig) -> None:
        self._config, decoder = config, config.decoder
        group = get_current_placement_group()
        assert group is not None, "serve.app gives a Decoder of several processes one"
        self._folder = tempfile.TemporaryDirectory(prefix="pasta-ranks-")  # gone with this object
        self._rendezvous = str(Path(self._folder.name) / "rendezvous")
        actor = ray.remote(Follower)
        self._actors = [
            actor.options(
                num_cpus=decoder.num_cpus,
                num_gpus=decoder.num_gpus,
                resources=decoder.resources,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank),
            ).remote()
            for rank in range(1, decoder.tensor_parallel)
        ]
        self._following = [
            actor.follow.remote(config, rank, self._rendezvous) for rank, actor in enumerate(self._actors, 1)
        ]

    def meet(self) -> "Ranks":
        """Wait until all ranks have met; returns this one, number 0."""
        return _meet(self._config, 0, self._rendezvous)

    def check(self) -> None:
        """Raise ``RuntimeError`` if one of the others has ended."""
        ended, _ = ray.wait(self._following, timeout=0)
        if ended:
            raise RuntimeError("a process that shares the model has ended")


def _meet(config: ServeConfig, rank: int, rendezvous: str) -> "Ranks":
    from pasta.engine.loading import resolve_device
    from pasta.engine.ranks import Ranks

    # All ranks are on one node: nobody else can reach them.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    (model,) = config.models.values()
    return Ranks(rank, config.decoder.tensor_parallel, Path(rendezvous), resolve_device(model.device))
