"""Tensor parallelism: several processes, the ranks, run the same models, each with its part of every weight and of the
cache.

Rank 0 has the engines: schedulers, interpreters, drafts, and the choice of tokens. It tells the others which models it
loads and what it does to its engines' ``DeviceState``, and they do the same (``follow``). A step is one message: what
happened in the cache since the last one, and the forward's inputs. Within the forward the ranks add up what each has
computed (pasta/engine/sharding.py).

All ranks are on one node. A rank that ends closes its connections: the others' next message or sum fails, and so do
they. One that hangs makes their sums time out.
"""

import itertools
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from pasta.engine.request import EngineConfig

#: How long a rank waits for the others within a forward.
_STEP = timedelta(minutes=2)
#: How long a rank waits at start for the others to connect.
_MEETING = timedelta(minutes=10)
#: How long it waits for the next message: an engine may be idle as long as it likes.
_IDLE = timedelta(days=3650)
#: Messages that name no method of a ``DeviceState``.
_LOAD, _STATE = "load model", "make state"


class Ranks:
    """This process among ``size`` that run the same models. At most one in a process.

    They compute on torch's accelerator, ``device_type``, if there is one.
    """

    def __init__(self, rank: int, size: int, rendezvous: Path) -> None:
        """Meet the other ranks, which give the same file ``rendezvous``, empty or not there yet, and wait for them.

        Gloo listens on the interface that the caller's environment names (GLOO_SOCKET_IFNAME), else on the host's own.
        """
        found = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        self.rank, self.size, self.device_type = rank, size, found.type
        backend = "cpu:gloo,cuda:nccl" if self.device_type == "cuda" else "gloo"
        store = dist.FileStore(str(rendezvous), size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_MEETING)
        self._messages = dist.new_group(backend="gloo", timeout=_IDLE)
        #: Adds up what the ranks compute.
        self.sums = dist.new_group(backend="nccl" if self.device_type == "cuda" else "gloo", timeout=_STEP)
        self._untold: list[tuple[int, str, Sequence[Any]]] = []
        self._models, self._states = itertools.count(), itertools.count()

    def load(self, arguments: dict[str, Any]) -> int:
        """Have the others call ``load_model`` with these arguments, now; returns the model's number."""
        number = next(self._models)
        self.tell(number, _LOAD, (arguments,), now=True)
        return number

    def add_state(self, model: int, config: "EngineConfig") -> int:
        """Have the others make a ``DeviceState`` of the model with this number; returns the state's number."""
        number = next(self._states)
        self.tell(model, _STATE, (config,))
        return number

    def tell(self, number: int, name: str, arguments: Sequence[Any], *, now: bool = False) -> None:
        """Have the others call this method of their state ``number``: before the next forward, unless ``now``.

        Only rank 0 tells anything; on the others this does nothing.
        """
        if self.rank > 0:
            return
        self._untold.append((number, name, arguments))
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


def follow(ranks: Ranks) -> NoReturn:
    """Run on ranks other than 0: do what rank 0 tells this rank. Raises ``RuntimeError`` when a rank has ended."""
    from pasta.engine.device import DeviceState
    from pasta.engine.loading import LoadedModel, load_model

    models: list[LoadedModel] = []
    states: list[DeviceState] = []
    while True:
        for number, name, arguments in ranks.agree(None):
            if name == _LOAD:
                models.append(load_model(**arguments[0], ranks=ranks))
                continue
            with torch.inference_mode():
                if name == _STATE:
                    states.append(DeviceState(models[number], *arguments))
                elif name == "forward":
                    shape, inputs = arguments
                    states[number].forward(shape, torch.from_numpy(inputs).to(states[number].device))
                else:
                    getattr(states[number], name)(*arguments)
