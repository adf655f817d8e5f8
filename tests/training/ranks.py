"""Runs a function in several processes that form a gloo process group, as Ray Train's workers do."""

import os
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Imported once, by a server from which the ranks are forked.
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.training.preloaded"])


def run_ranks(function: Callable[..., Any], directory: Path, *arguments: Any, count: int = 2) -> None:
    """Call ``function(*arguments)`` on ``count`` ranks. Fails with the first traceback of any of them."""
    directory.mkdir(parents=True, exist_ok=True)
    ranks = [
        CONTEXT.Process(target=_rank, args=(rank, count, directory, function, arguments))
        for rank in range(count)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(540)
    hanging = [process for process in ranks if process.is_alive()]
    for process in hanging:
        process.kill()
    faults = [path.read_text() for path in sorted(directory.glob("rank-*.txt"))]
    assert not faults, "\n".join(faults)
    assert not hanging, "a rank waits for ever"
    assert all(process.exitcode == 0 for process in ranks)


def no_report(metrics: dict[str, float], checkpoint: Path | None) -> None:
    """For runs whose checkpoints nobody waits for."""


def _rank(
    rank: int, count: int, directory: Path, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": os.environ.get("MASTER_PORT", "29500"),
    }
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=count
        )
        function(*arguments)
        dist.barrier()
    except BaseException:
        (directory / f"rank-{rank}.txt").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)  # DeepSpeed's threads do not end by themselves
