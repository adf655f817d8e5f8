"""A pool of Ray actors that works through shards. A shard whose worker dies is done again by another one.

Ray Data's actor pool tries a shard that kills its worker again without end, and a job's first result comes seconds
later: docs/notes/workers.md.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from jobs.cluster import ray_cluster
from pasta.errors import UserError, first_line
from pasta.stages.workers import LightWorkersSection, WorkersSection
from serve.imports import uncollected, without_torch

Work = Callable[[Any], Any]


class _Worker:
    """One actor. What it works with (a model) is made with its first shard, so that a mistake is that shard's error."""

    def __init__(
        self, make: Callable[[], Work], cwd: str, options: WorkersSection | LightWorkersSection
    ) -> None:
        if not options.holds_model:
            without_torch()
        os.chdir(cwd)  # relative paths in a configuration mean the same on every worker
        # Torch reads it when it is imported. Not every worker needs torch, and importing it takes seconds.
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(options.threads)
        self._make = make
        self._work: Work | None = None

    def ready(self) -> None:
        """Answers as soon as there is a place for this actor."""

    def run(self, shard: Any) -> tuple[Any, str | None]:
        """The shard's result, or a user's mistake in one line (not every exception survives pickling)."""
        try:
            if self._work is None:
                with uncollected():
                    self._work = self._make()
            return self._work(shard), None
        except UserError as error:
            return None, str(error)


def run_shards(
    make: Callable[[], Work],
    shards: Mapping[int, Any],
    on_result: Callable[[int, Any], None],
    options: WorkersSection | LightWorkersSection,
    address: str | None = None,
) -> None:
    """Give every shard to ``make()`` on some worker; ``on_result(number, result)`` runs here, in order of completion.

    A worker that the cluster has no place for, or none any more, holds nothing up as long as there is another. Raises
    UserError for a user's mistake on a worker, and when more than ``max_failures`` workers have died.
    """
    if not shards:
        return
    num_workers = min(options.num_workers, len(shards))
    with ray_cluster(address, num_workers, options.threads) as check_interrupt:
        # Ray is imported after its environment is set.
        import ray
        from ray.exceptions import ObjectLostError, RayActorError

        use_gpu = options.use_gpu
        if use_gpu == "auto":
            use_gpu = ray.cluster_resources().get("GPU", 0) > 0
        actor = ray.remote(num_cpus=options.cpus, num_gpus=1 if use_gpu else 0)(_Worker)

        waiting: deque[int] = deque(sorted(shards))
        idle: list[Any] = []
        # What each call is about: a worker, and the shard that it has, or None while it starts.
        running: dict[Any, tuple[Any, int | None]] = {}
        number: int | None
        missing, failures = set(shards), 0
        workers: list[Any] = []

        def start() -> None:
            worker = actor.remote(make, os.getcwd(), options)
            workers.append(worker)
            running[worker.ready.remote()] = (worker, None)

        try:
            for _ in range(num_workers):
                start()
            while missing:
                while waiting and idle:
                    worker, number = idle.pop(), waiting.popleft()
                    running[worker.run.remote(shards[number])] = (worker, number)
                (ready, *_), _ = ray.wait(list(running), num_returns=1)
                check_interrupt()
                worker, number = running.pop(ready)
                try:
                    answer = ray.get(ready)
                # The second: its node died when it had finished, and before this process had what it found.
                except (RayActorError, ObjectLostError) as error:
                    failures += 1
                    place = "before its first shard" if number is None else f"at shard {number}"
                    if 0 <= options.max_failures < failures:
                        raise UserError(
                            f"workers.max_failures: {failures} workers died, the last one {place} "
                            f"({first_line(error)}); finished shards are kept"
                        ) from None
                    again = "" if number is None else f"; shard {number} is done again"
                    print(f"a worker died{again}", file=sys.stderr, flush=True)
                    if number is not None:
                        waiting.appendleft(number)
                    start()
                    continue
                idle.append(worker)
                if number is not None:
                    result, mistake = answer
                    if mistake is not None:
                        raise UserError(mistake)
                    missing.discard(number)
                    on_result(number, result)
        finally:
            # The cluster may outlive this call, and a traceback would keep its workers and their places.
            for worker in workers:
                ray.kill(worker)
