"""Tensor parallelism: several processes, the ranks, run one model, each with its part of every weight and of the cache.

Rank 0 has the engine: scheduler, interpreters, drafts, and the choice of tokens. It tells the others what it does to
its ``DeviceState``, and they do the same to theirs (``follow``). A step is one message: what happened in the cache
since the last one, and the forward's inputs. Within the forward the ranks add up what each has computed
(pasta/engine/sharding.py).

All ranks are on one node. A rank that ends closes its connections: the others' next message or sum fails, and so do
they. One that hangs makes their sums time out.
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pasta.errors import UserError

if TYPE_CHECKING:
    from pasta.engine.loading import LoadedModel
    from pasta.engine.request import EngineConfig

#: How long a rank waits for the others within a forward.
_STEP = timedelta(minutes=2)
#: How long it waits for the others to meet it.
_MEETING = timedelta(minutes=10)
#: How long it waits for the next message: an engine may be idle as long as it likes.
_IDLE = timedelta(days=3650)


class Ranks:
    """This process among ``size`` that run one model. At most one in a process."""

    def __init__(self, rank: int, size: int, rendezvous: Path, device: torch.device) -> None:
        """Meet the other ranks, which give the same file ``rendezvous``, empty or not there yet, and wait for them.

        Gloo listens on the interface that the caller's environment names (GLOO_SOCKET_IFNAME), else on the host's own.

        Raises ``UserError`` if torch would take another device than ``device`` for them.
        """
        found = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        if found.type != device.type:
            raise UserError(
                f"device: {device.type!r}, but with tensor_parallel torch takes {found.type!r} here; expected auto"
            )
        self.rank, self.size = rank, size
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        store = dist.FileStore(str(rendezvous), size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_MEETING)
        self._messages = dist.new_group(backend="gloo", timeout=_IDLE)
        #: Adds up what the ranks compute.
        self.sums = dist.new_group(backend="nccl" if device.type == "cuda" else "gloo", timeout=_STEP)
        self._untold: list[tuple[str, Sequence[Any]]] = []

    def tell(self, name: str, arguments: Sequence[Any], *, now: bool = False) -> None:
        """Have the others call this method of their states: before the next forward, unless ``now``.

        Only rank 0 tells anything; on the others this does nothing.
        """
        if self.rank > 0:
            return
        self._untold.append((name, arguments))
        if now:
            self.agree(self._untold)
            self._untold = []

    def agree(self, what: Any) -> Any:
        """Return on every rank what rank 0 gives."""
        box = [what]
        dist.broadcast_object_list(box, src=0, group=self._messages)
        return box[0]

    def wait(self) -> None:
        """Wait until all ranks are here."""
        dist.barrier(group=self._messages)

    def dismiss(self) -> None:
        """On rank 0: have the others' ``follow`` return."""
        self._untold = []
        self.agree(None)

    def leave(self) -> None:
        """End this process's part."""
        dist.destroy_process_group()


@torch.inference_mode()
def follow(loaded: "LoadedModel", config: "EngineConfig") -> None:
    """On ranks other than 0: do what rank 0 tells until it dismisses them.

    Raises ``RuntimeError`` when a rank has ended.
    """
    from pasta.engine.device import DeviceState

    ranks = loaded.ranks
    assert ranks is not None, "a whole model has nobody to follow"
    state = DeviceState(loaded, config)
    while (told := ranks.agree(None)) is not None:
        for name, arguments in told:
            if name == "forward":
                shape, inputs = arguments
                state.forward(shape, torch.from_numpy(inputs).to(state.device))
            else:
                getattr(state, name)(*arguments)
