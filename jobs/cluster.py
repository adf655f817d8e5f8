"""What every Ray job needs: a cluster to run on, the environment of its workers, and the version of the code."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pasta.engine.section import EngineSection, check_here
from pasta.errors import UserError, first_line
from pasta.signals import ended_by_sigterm, kept_interrupt
from pasta.stages.workers import LightWorkersSection, WorkersSection
from serve.ray_start import GPUS_AS_RESERVED, ROOT, check_ray, python_path, start_ray, stop_ray

#: This variable names the code's version where there is no working tree to ask: in an image, or on a cluster.
CODE_VERSION = "PASTA_CODE_VERSION"
_ADDRESS = re.compile(r"(?:ray://)?(?P<host>[^\s/:\[\]]+|\[[\da-fA-F:.%]+\]):(?P<port>[0-9]{1,5})")
_FORMS = "host:port, ray://host:port or auto"
_CONNECT_S = 10.0
#: What a job's messages take at most in Ray's object store, where that lies, and its share of the memory by Ray's rule.
_MESSAGES_BYTES = 200 * 1024 * 1024
_SHARED_MEMORY = "/dev/shm"
_OBJECTS_SHARE = 0.3
#: In Ray's message where it ended a process for want of memory.
_USED = re.compile(r"was (\S+) used / (\S+) limit")


@contextmanager
def ray_cluster(
    address: str | None, num_cpus: int, threads: int = 1, *, objects: int = 0
) -> Iterator[Callable[[], None]]:
    """Ray for the time of the block: the cluster at ``address``, or a local one of ``num_cpus`` that ends with it.

    Yields a function that raises a Ctrl-C that Ray has swallowed (``kept_interrupt``), and CutShort if a local Ray has
    ended (``check_ray``): call it in loops that wait for Ray.

    Without ``address`` the cluster is the one that RAY_ADDRESS names, as it does for a job that was submitted to one. A
    cluster that is connected already is used as it is. ``threads`` is what each worker computes with. A local one has
    no dashboard, which is thirteen processes, and room for ``objects`` (bytes) in its object store. SIGTERM ends the
    block with Terminated. Raises UserError as ``check_address`` does.
    """
    check_address(address)
    key, address = _key(address), _given(address)
    # Ray's own print makes libraries that print through a pickled function dump their bytecode.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    if address is None:
        # Nobody announces the end of this machine: Ray Train need not start a process that watches for such notices.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    # A submitted job has an environment already: add to it what the workers need. Ray would refuse to replace it.
    os.environ.setdefault("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1")
    import ray

    # Around Ray's start, so that no handler of Ray's is left when the block has ended.
    with kept_interrupt() as check_interrupt, ended_by_sigterm():

        def check() -> None:
            check_interrupt()
            check_ray()

        if ray.is_initialized():
            yield check
            return
        try:
            try:
                start_ray(
                    lambda: print("Ray was too slow to start; trying once more", file=sys.stderr),
                    # Without an address Ray would join any other cluster that happens to run on this machine.
                    address=address or "local",
                    num_cpus=None if address else num_cpus,
                    include_dashboard=None if address else False,
                    object_store_memory=None if address else _object_store(objects),
                    # Workers that Ray starts in advance lack the environment below: none of them would ever be used.
                    _system_config=None if address else {"prestart_worker_first_driver": False},
                    runtime_env={"env_vars": worker_env(threads)},
                    log_to_driver=True,
                )
            except ConnectionError as error:
                if address is None:
                    raise
                raise UserError(f"{key}: {address}: {first_line(error)}") from None
            # Ray's own handlers print a trace of machine code and exit with 15, or abort (134), as if it had crashed.
            with ended_by_sigterm():
                yield check
        finally:
            if address is None:
                stop_ray()
            else:
                ray.shutdown()


def _object_store(objects: int) -> int:
    """The bytes of an object store for messages and ``objects``, as many as the machine has memory for. Ray writes what
    has no room to disk, and refuses it where that is almost full."""
    if not objects:
        return _MESSAGES_BYTES
    from pasta.engine.memory import machine_memory

    room = min(shutil.disk_usage(_SHARED_MEMORY).free, int(_OBJECTS_SHARE * machine_memory()))
    return max(_MESSAGES_BYTES, min(_MESSAGES_BYTES + objects, room))


def check_address(address: str | None) -> None:
    """Raise UserError, naming the option or the variable, unless the address that ``ray_cluster`` would join can be a
    cluster's and somebody listens there. Ray itself would try for minutes."""
    if (given := _given(address)) in (None, "auto", "local"):
        return
    expected = f"expected {_FORMS}, and RAY_ADDRESS not set for a local cluster"
    if given.startswith(("http://", "https://")):
        raise UserError(
            f"{_key(address)}: {given} is where jobs are submitted (python -m jobs.submit); {expected}"
        )
    found = _ADDRESS.fullmatch(given)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise UserError(f"{_key(address)}: {given!r}, {expected}")
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), _CONNECT_S).close()
    except OSError as error:
        raise UserError(
            f"{_key(address)}: {given} cannot be reached ({error.strerror or error}); is the cluster running?"
        ) from None


def is_local(address: str | None) -> bool:
    """Whether ``ray_cluster(address, …)`` is a Ray of this process's own."""
    return _given(address) is None


def check_engine(
    section: EngineSection, workers: WorkersSection, address: str | None, models: Iterable[str | None] = ()
) -> None:
    """Raise UserError, naming the key, if the engines of these ``workers`` of a local Ray cannot run here as
    configured, or this machine has no room for these models and their caches; and if a slot holds more tokens than one
    of these models has positions, wherever the engines run.

    Engines on another cluster's machines report the other mistakes when they load a model.
    """
    sees_gpus = workers.use_gpu is not False
    if is_local(address):
        check_here(section, section.dtype, section.device, sees_gpus=sees_gpus)
    for model in dict.fromkeys(models):
        if model is not None:
            from pasta.engine.memory import check_engine_memory, check_positions

            if is_local(address):
                check_engine_memory(
                    section,
                    [(model, section.dtype)],
                    section.device,
                    engines=workers.num_workers,
                    sees_gpus=sees_gpus,
                )
            check_positions(section.slot_tokens, [model])


def takes_gpus(
    workers: WorkersSection | LightWorkersSection,
    address: str | None,
    *,
    together: int,
    key: str = "workers.num_workers",
) -> bool:
    """Whether ``workers`` take a GPU each; Ray is connected.

    ``together`` processes wait until all of them have a place. Raises UserError, naming ``key``, if a local Ray has
    fewer GPUs: they would wait for ever, where a cluster may still get some.
    """
    if workers.use_gpu is False:
        return False
    import ray

    return _takes(workers, address, ray.cluster_resources().get("GPU", 0), together, key)


def check_gpus(workers: WorkersSection, address: str | None) -> None:
    """Raise UserError as ``takes_gpus`` does where Ray would be a local one, before a job makes its data."""
    if workers.use_gpu is not False and is_local(address):
        import torch

        _takes(workers, address, torch.cuda.device_count(), workers.num_workers, "workers.num_workers")


def _takes(
    workers: WorkersSection | LightWorkersSection,
    address: str | None,
    num_gpus: float,
    together: int,
    key: str,
) -> bool:
    """``takes_gpus`` where there are ``num_gpus``."""
    taken = num_gpus > 0 if workers.use_gpu == "auto" else bool(workers.use_gpu)
    if taken and is_local(address) and num_gpus < together:
        section = "rollout.workers" if key.startswith("rollout.") else "workers"
        what = f"{together} processes take a GPU each" if together > 1 else "1 process takes a GPU"
        raise UserError(
            f"{key}: {what}, and this machine has {num_gpus:.0f}; expected at most as many, or {section}.use_gpu: false"
        )
    return taken


def _key(address: str | None) -> str:
    return "--address" if address else "RAY_ADDRESS"


def _given(address: str | None) -> str | None:
    return address or os.environ.get("RAY_ADDRESS") or None


def cause_of_death(error: Exception) -> str:
    """Why an actor died, in a line. Of one that was killed Ray knows only that memory may have been the cause."""
    if used := _USED.search(str(error)):
        return f"Ray ended it, since the machine's memory is used up: {used[1]} of {used[2]}"
    said = first_line(error).rstrip(".")
    return f"{said}; the system kills processes for which it has no memory" if "OOM" in str(error) else said


def worker_env(threads: int) -> dict[str, str]:
    """Environment variables of workers: tools beside this Python, one place for compiled extensions, quiet threads, and
    no GPUs but those that a worker reserves."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": python_path(),
        "TORCH_EXTENSIONS_DIR": os.environ.get("TORCH_EXTENSIONS_DIR", str(cache / "torch_extensions")),
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait take the cores from the workers beside them.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        **GPUS_AS_RESERVED,
    }


def enter_worker(cwd: str, threads: int) -> None:
    """Set an actor's process up: relative paths in a configuration mean the same on every worker, and torch computes
    with so many threads."""
    os.chdir(cwd)
    # Torch reads it when it is imported. Not every worker needs torch, and importing it takes seconds.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def code_version() -> str:
    """The commit of the working tree; outside one what PASTA_CODE_VERSION says, or the package's version."""
    import pasta

    if given := os.environ.get(CODE_VERSION):
        return given
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return pasta.__version__
    return described.stdout.strip() if described.returncode == 0 else pasta.__version__
