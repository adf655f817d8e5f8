"""A pool of Ray actors that works through shards. A shard whose worker dies is done again by another one.

With ``workers.tensor_parallel`` a worker is several processes that share its models (serve/followers.py); one that
dies takes its worker with it.

Ray Data's actor pool tries a shard that kills its worker again without end, and a job's first result comes seconds
later: docs/notes/workers.md.
"""

import math
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jobs.cluster import cause_of_death, enter_worker, ray_cluster, takes_gpus
from pasta.errors import UserError
from pasta.stages.workers import LightWorkersSection, WorkersSection
from serve.imports import uncollected, without_torch

if TYPE_CHECKING:
    from serve.followers import Followers

Work = Callable[[Any], Any]
#: How often to see whether Ray still runs.
_LOOK_S = 1.0


class _Worker:
    """One actor. It makes its model with its first shard, so that a mistake there is that shard's error."""

    def __init__(
        self,
        make: Callable[..., Work],
        cwd: str,
        options: WorkersSection | LightWorkersSection,
        reserved: Mapping[str, float],
    ) -> None:
        if not options.holds_model:
            without_torch()
        enter_worker(cwd, options.threads)
        self._make, self._options, self._reserved = make, options, reserved
        self._work: Work | None = None
        self._followers: Followers | None = None

    def ready(self) -> None:
        """Answers as soon as the cluster has a place for this actor."""

    def run(self, shard: Any) -> tuple[Any, str | None]:
        """The shard's result, or a user's mistake in one line (not every exception survives pickling)."""
        try:
            if self._work is None:
                with uncollected():
                    self._work = self._make() if self._options.processes == 1 else self._make_shared()
            return self._work(shard), None
        except UserError as error:
            return None, str(error)
        except Exception:
            if self._followers is None:
                raise
            # A process that shares the models has ended or hangs, or they are out of step: this worker cannot go on.
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _make_shared(self) -> Work:
        from serve.followers import Followers

        options = self._options
        self._followers = Followers(options.processes, threads=options.threads, **self._reserved)
        return self._make(ranks=self._followers.meet())


def run_shards(
    make: Callable[..., Work],
    shards: Mapping[int, Any],
    on_result: Callable[[int, Any], None],
    options: WorkersSection | LightWorkersSection,
    address: str | None = None,
) -> None:
    """Give every shard to ``make()`` on some worker; ``on_result(number, result)`` runs here, in order of completion.
    On workers of several processes it is ``make(ranks=…)``, with the ``Ranks`` to load models with.

    A worker without a place in the cluster does not hold the others up. Raises UserError for a user's mistake on a
    worker, when more than ``max_failures`` workers have died, and, on a Ray of this process's own, if the machine has
    too few GPUs for the processes of one worker.
    """
    if not shards:
        return
    num_workers = min(options.num_workers, len(shards))
    # On a Ray of this process's own every worker has its place, whatever it reserves.
    num_cpus = math.ceil(num_workers * options.processes * options.cpus)
    with ray_cluster(address, num_cpus, options.threads) as check:
        # Ray is imported after its environment is set.
        import ray
        from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError
        from ray.util import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from serve.followers import STRATEGY, bundles

        size = options.processes
        key = "workers.tensor_parallel" if size > 1 else "workers.num_workers"
        gpus = 1.0 if takes_gpus(options, address, together=size, key=key) else 0.0
        reserved = {"num_cpus": options.cpus, "num_gpus": gpus}
        actor = ray.remote(**reserved)(_Worker)

        waiting: deque[int] = deque(sorted(shards))
        idle: list[Any] = []
        # The pending calls: each one's worker, and the shard that the worker has (None while it starts).
        running: dict[Any, tuple[Any, int | None]] = {}
        number: int | None
        missing, failures = set(shards), 0
        workers: dict[Any, Any] = {}  # each with its placement group, if it has one

        def start() -> None:
            group, placed = None, actor
            if size > 1:
                group = placement_group(bundles(size, options.cpus, gpus), STRATEGY)
                placed = actor.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0))
            worker = placed.remote(make, os.getcwd(), options, reserved)
            workers[worker] = group
            running[worker.ready.remote()] = (worker, None)

        def end(worker: Any) -> None:
            ray.kill(worker)
            if (group := workers.pop(worker)) is not None:
                remove_placement_group(group)

        try:
            for _ in range(num_workers):
                start()
            while missing:
                while waiting and idle:
                    worker, number = idle.pop(), waiting.popleft()
                    running[worker.run.remote(shards[number])] = (worker, number)
                done, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
                check()
                if not done:
                    continue
                (ready,) = done
                worker, number = running.pop(ready)
                try:
                    answer = ray.get(ready)
                # The second: its node died when it had finished, and before this process had what it found.
                except (RayActorError, OutOfMemoryError, ObjectLostError) as error:
                    end(worker)
                    failures += 1
                    place = "before its first shard" if number is None else f"at shard {number}"
                    if 0 <= options.max_failures < failures:
                        raise UserError(
                            f"workers.max_failures: {failures} workers died, the last one {place} "
                            f"({cause_of_death(error)}); finished shards are kept"
                        ) from None
                    again = "" if number is None else f"; shard {number} is done again"
                    print(f"a worker died{again} ({cause_of_death(error)})", file=sys.stderr, flush=True)
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
            for worker in [*workers]:
                end(worker)
