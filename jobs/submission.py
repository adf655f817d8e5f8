"""Prepares a job for a cluster: a command that is checked here first, the code, and named variables.

Nothing in this module contacts a cluster, or imports Ray.
"""

import importlib
import json
import re
import secrets
import shlex
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from jobs.cluster import CODE_VERSION, ROOT, code_version, worker_env
from jobs.storage import RUNS, SENT, check_paths, relocated, shared
from pasta.config import leaves, load_config, read_yaml, to_dict
from pasta.errors import UserError
from pasta.files import shown

#: Jobs that can be submitted, each a module of this package.
JOBS = ("annotate", "sft", "sample", "score", "preference", "rl", "evaluate", "pipeline", "benchmark")
RUNTIME_ENV = ROOT / "configs" / "cluster" / "runtime_env.yaml"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as it is sent. ``env_vars`` holds secrets: it is left out of what is printed."""

    id: str
    entrypoint: str
    metadata: dict[str, str]
    notes: tuple[str, ...]
    env_vars: dict[str, str] = field(repr=False)
    left_out: tuple[str, ...] = ()

    @property
    def runtime_env(self) -> dict[str, Any]:
        """configs/cluster/runtime_env.yaml with this repository and these variables in it, without ``left_out``."""
        base = read_yaml(RUNTIME_ENV)
        sent = {**base, "working_dir": str(ROOT), "env_vars": {**base["env_vars"], **self.env_vars}}
        # Patterns, as in .gitignore.
        left_out = ("/" + re.sub(r"[^\w/.-]", r"\\\g<0>", path) for path in self.left_out)
        return {**sent, "excludes": [*base.get("excludes", ()), *left_out]}


def prepare_submission(
    job: str,
    arguments: Sequence[str],
    *,
    config: Path | None = None,
    storage: str | None = None,
    variables: Sequence[str] = (),
    environ: Mapping[str, str],
    id: str | None = None,
) -> Submission:
    """Check the command line of ``python -m jobs.JOB --config CONFIG ARGUMENTS`` and everything it names.

    Paths that begin with runs/ are moved to ``storage``. ``variables`` are names; their values are taken from
    ``environ``. Raises UserError, or exits as argparse does, before anything has left this machine.
    """
    module = importlib.import_module(f"jobs.{job}")
    directory = None if storage is None else shared(storage)
    if job == "benchmark":
        name, command, sections = _benchmark(module, config, arguments, directory)
    else:
        name, command, sections = _configured(job, module, config, arguments, directory)
    for where, section in sections.items():
        check_paths(section, ROOT, where)
    env_vars, left_out = _values(variables, environ), _special_files()
    told = (f"{shown(path)}: is a pipe, a socket or a device, and is not sent" for path in left_out)
    return Submission(
        id=_identifier(id, job, name),
        entrypoint=shlex.join(["python", "-m", f"jobs.{job}", *command]),
        metadata={"job": job, "name": name},
        notes=(*_missing(sections, env_vars), *told),
        env_vars={**env_vars, CODE_VERSION: code_version()},
        left_out=left_out,
    )


def _special_files() -> tuple[str, ...]:
    """The pipes, sockets and devices in the folders that are sent: Ray, which reads all, would wait for a pipe's writer
    for ever."""
    found = (path for folder in SENT for path in sorted((ROOT / folder).rglob("*")))
    return tuple(
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.exists() and not path.is_file() and not path.is_dir()
    )


def _configured(
    job: str, module: ModuleType, config: Path | None, arguments: Sequence[str], storage: Path | None
) -> tuple[str, list[str], dict[str, Any]]:
    """The job's name, its arguments on the cluster, and its configurations by what errors say before their keys."""
    if config is None:
        raise UserError(f"--config: {job} needs a YAML file such as configs/{job}/….yaml")
    path = config.resolve()
    inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else None
    parser = module.parser()
    parser.prog = f"python -m jobs.submit {job}"
    options = parser.parse_args(["--config", str(config), *arguments])
    options.check(options)
    if storage is not None and job == "pipeline":
        _check_one_storage(storage, options.overrides)
    sections = _sections(job, module, options)
    if inside is None or inside.parts[0] not in SENT:
        raise UserError(
            f"--config {config}: is not sent to the cluster; expected a file below {ROOT / 'configs'}"
        )
    if getattr(options, "gpu_hours", None) is not None:
        arguments = _with_simulation(arguments, options.gpu_hours, storage)
    command = ["--config", inside.as_posix(), *arguments]
    if storage is not None:
        # A pipeline does the same for each of its stages, when it comes to it.
        moved = (
            [f"storage={json.dumps(str(storage))}"] if job == "pipeline" else relocated(sections[""], storage)
        )
        command += [part for override in moved for part in ("--set", override)]
        sections = _sections(job, module, parser.parse_args(["--config", str(config), *command[2:]]))
    return str(sections[""].name), command, sections


def _with_simulation(arguments: Sequence[str], file: Path, storage: Path | None) -> list[str]:
    """``arguments`` with the value of ``--gpu-hours``, which is ``file``, as the cluster sees it."""
    at = next(n for n, argument in enumerate(arguments) if argument.partition("=")[0] == "--gpu-hours")
    after = at + 1 if "=" in arguments[at] else at + 2
    return [*arguments[:at], "--gpu-hours", _simulation(file, storage), *arguments[after:]]


def _simulation(file: Path, storage: Path | None) -> str:
    """The path that a pipeline's ``--gpu-hours`` has on the cluster. Raises UserError for a file that is not there."""
    path = file.resolve()
    if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in SENT:
        return path.relative_to(ROOT).as_posix()
    moved = _moved(str(file), storage) if storage is not None else str(file)
    if not moved.startswith("/") or Path(moved).is_relative_to(ROOT):
        raise UserError(
            f"--gpu-hours {file}: is not sent to the cluster; expected a file below {ROOT / 'configs'}, or on storage "
            f"that all nodes share (--storage moves what begins with {RUNS}/)"
        )
    return moved


def _check_one_storage(storage: Path, overrides: Sequence[str]) -> None:
    """Raise UserError for a pipeline that is told of another storage by its own key."""
    for override in overrides:
        if override.partition("=")[0].strip() == "storage":
            raise UserError(f"--set {override}: --storage {storage} says where; expected one of them")


def _sections(job: str, module: ModuleType, options: Namespace) -> dict[str, Any]:
    if job == "pipeline":
        config, steps = module.read_recipe(options)
        stages = module.read_stages(config, steps)
        return {"": config, **{f"{name}: ": stage for name, stage in stages.items()}}
    return {"": load_config(options.config, module.CONFIG, options.overrides)}


def _benchmark(
    module: ModuleType, config: Path | None, arguments: Sequence[str], storage: Path | None
) -> tuple[str, list[str], dict[str, Any]]:
    part = arguments[0] if arguments and arguments[0] in module.PARTS else ""
    parser = module.parser_of(part) if part else module.parser()
    parser.prog = f"python -m jobs.submit benchmark {part}".rstrip()
    command = [*arguments[1:]] if part else [*arguments]
    if config is not None:
        # Only the service's parts have this option; here it is read before theirs.
        if parser.get_default("config") is None:
            own = f"python -m jobs.benchmark {part}".rstrip()
            raise UserError(f"--config: {part or 'the benchmark'} has none; {own} --help lists its options")
        path = config.resolve()
        command = ["--config", str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else config), *command]
    options = parser.parse_args(command)
    if not part:
        module.settings_of(options)
    if storage is not None:
        command = [_moved(argument, storage) for argument in command]
        options = parser.parse_args(command)
    what = part or options.what
    out = options.out or module.default_out(what, options)
    if not out.is_absolute():
        if storage is None or out.parts[:1] != (RUNS,):
            raise UserError(
                f"--out {out}: would be deleted with the job's working directory; expected an absolute path on storage "
                f"that all nodes share (or --storage for what begins with {RUNS}/)"
            )
        command += ["--out", str(storage / out)]
    given = {
        f"--{name.replace('_', '-')}": [*map(str, value)] if isinstance(value, tuple) else str(value)
        for name, value in vars(options).items()
        if name != "out" and value != parser.get_default(name) and isinstance(value, str | Path | tuple)
    }
    return what, [part, *command] if part else command, {"": given}


def _moved(argument: str, storage: Path) -> str:
    """A value, or an option with its value behind ``=``, on ``storage`` if it is a path that begins with runs/: also
    one of several with commas between them, as --shapes has."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    parts = (str(storage / part) if Path(part).parts[:1] == (RUNS,) else part for part in value.split(","))
    return f"{option}{equals}{','.join(parts)}"


def _values(variables: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    values = {}
    for name in variables:
        if not _VARIABLE.fullmatch(name):
            # The value given may be NAME=SECRET: repeat the name only.
            shown = name.partition("=")[0]
            raise UserError(
                f"--env {shown}: expected a variable's name alone; its value is taken from the environment"
            )
        if name in worker_env(1) or name == CODE_VERSION:
            raise UserError(f"--env {name}: expected another name; every job sets this one itself")
        if name not in environ:
            raise UserError(
                f"--env {name}: is not set; expected a variable of this environment (export it first)"
            )
        values[name] = environ[name]
    return values


def _missing(sections: Mapping[str, Any], sent: Mapping[str, str]) -> list[str]:
    """Warnings about environment variables that the job will need and that are not sent."""
    wanted: dict[str, str] = {}
    for where, section in sections.items():
        for key, value in leaves(to_dict(section)):
            last = key.rpartition(".")[2]
            if last == "api_key_env" and isinstance(value, str):
                wanted.setdefault(value, f"{where}{key}")
            elif key == "tracking.mode" and value == "online":
                wanted.setdefault("WANDB_API_KEY", f"{where}{key}")
    return [
        f"{key}: {name} is not sent; the nodes must have it (or --env {name})"
        for name, key in wanted.items()
        if name not in sent
    ]


def _identifier(given: str | None, job: str, name: str) -> str:
    if given is not None:
        if not _ID.fullmatch(given):
            raise UserError(f"--id {given!r}: expected a letter or digit, then also '.', '_' and '-'")
        return given
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
    return f"{job}-{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
