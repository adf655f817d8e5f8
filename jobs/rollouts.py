"""Answers for reinforcement learning, sampled by engines in Ray actors. The actors get new weights for each batch
through Ray's object store.

An actor that dies is replaced, and its share is sampled again. An answer depends on weights, batch and prompt alone, so
that nothing differs and nothing counts twice.
"""

import os
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from jobs.cluster import cause_of_death, enter_worker
from pasta.errors import UserError
from pasta.rl.config import RlConfig
from pasta.rl.rollouts import Group, Rollout, Weights
from pasta.stages.records import Record
from pasta.training.run import RunContext
from serve.imports import uncollected


def train_with_rollouts(
    config: RlConfig, context: RunContext, api_key: str | None = None
) -> dict[str, float]:
    """``pasta.rl.train.train`` on a Ray Train worker; the first one has the actors."""
    with uncollected():
        import torch.distributed as dist

        from pasta.rl.train import train as train_on
    if dist.is_initialized() and dist.get_rank():
        return train_on(config, context, None)
    with RolloutActors(config) as rollouts:
        return train_on(config, context, rollouts, api_key)


class _Sampler:
    """One actor: an engine, made with its first weights, so that a mistake is that call's error."""

    def __init__(self, config: RlConfig, cwd: str) -> None:
        enter_worker(cwd, config.rollout.workers.threads)
        self._config = config
        self._roller: Any = None
        self._version = -1

    def load(self, weights: Weights, version: int) -> None:
        """Sample with these weights from now on. ``sample`` reports what goes wrong here."""
        self._version = version
        if isinstance(self._roller, Exception):
            return  # the first failure is the one to report
        try:
            if self._roller is None:
                with uncollected():
                    from pasta.rl.sampling import Roller

                    self._roller = Roller(self._config)
            self._roller.load(weights)
        except Exception as error:  # nobody waits for this call
            self._roller = error

    def sample(self, batch: int, groups: Sequence[Group]) -> tuple[list[list[Record]], int, str | None]:
        """The candidates of each group and the weights' version, or a user's mistake in one line."""
        if isinstance(self._roller, UserError):
            return [], self._version, str(self._roller)
        if isinstance(self._roller, Exception):
            raise self._roller
        try:
            score = bool(self._config.rollout.staleness)
            return self._roller.sample(batch, groups, score=score), self._version, None
        except UserError as error:
            return [], self._version, str(error)


class RolloutActors:
    """``pasta.rl.rollouts.Rollouts`` on ``rollout.workers``. They end with the block, or with their owner's process.

    Raises UserError for a user's mistake on an actor, and when more than ``max_failures`` actors have died.
    """

    def __init__(self, config: RlConfig) -> None:
        self._config, self._options = config, config.rollout.workers
        self._actors: list[Any] = []
        self._weights: Any = None
        self._version = -1
        self._failures = 0
        self._closed = False

    def __enter__(self) -> "RolloutActors":
        self._actors = [self._start() for _ in range(self._options.num_workers)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        self._closed = True
        for actor in self._actors:
            ray.kill(actor)

    def publish(self, weights: Weights, version: int) -> None:
        import ray

        # One copy in the object store for all actors of a node; Ray frees the old one after its last reader.
        self._weights, self._version = ray.put(dict(weights)), version
        for actor in self._actors:
            actor.load.remote(self._weights, version)

    def sample(self, batch: int, groups: Sequence[Group]) -> Rollout:
        import ray
        from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError

        began, lost = time.perf_counter(), 0
        count = len(self._actors)
        shares = {n: list(range(n, len(groups), count)) for n in range(count) if n < len(groups)}
        found: dict[int, list[Record]] = {}
        versions = {self._version}

        def ask(number: int) -> Any:
            return self._actors[number].sample.remote(batch, [groups[i] for i in shares[number]])

        running = {ask(number): number for number in shares}
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            number = running.pop(ready)
            try:
                answers, version, mistake = ray.get(ready)
            except (RayActorError, OutOfMemoryError, ObjectLostError) as error:
                if self._closed:
                    raise
                lost += 1
                self._replace(number, batch, error)
                running[ask(number)] = number
                continue
            if mistake is not None:
                raise UserError(mistake)
            versions.add(version)
            found |= dict(zip(shares[number], answers, strict=True))
        assert len(versions) == 1, "weights are published when nobody samples"
        return Rollout(
            [found[i] for i in range(len(groups))], self._version, began, time.perf_counter(), lost
        )

    def _replace(self, number: int, batch: int, error: Exception) -> None:
        self._failures += 1
        if 0 <= self._options.max_failures < self._failures:
            raise UserError(
                f"rollout.workers.max_failures: {self._failures} actors died, the last one at batch {batch} "
                f"({cause_of_death(error)}); the same command goes on from the last checkpoint"
            ) from None
        said = f"a rollout actor died; its share of batch {batch} is sampled again"
        print(f"{said} ({cause_of_death(error)})", file=sys.stderr, flush=True)
        self._actors[number] = self._start()
        self._actors[number].load.remote(self._weights, self._version)

    def _start(self) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options = self._options
        use_gpu = options.use_gpu
        if use_gpu == "auto":
            use_gpu = ray.cluster_resources().get("GPU", 0) > 0
        actor = ray.remote(
            num_cpus=options.cpus,
            num_gpus=1 if use_gpu else 0,
            # Not in the places that Ray Train has reserved for training workers.
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=None),
        )(_Sampler)
        return actor.remote(self._config, os.getcwd())
