"""Measure the service as its clients see it, against the engine that does the work:

    python -m jobs.benchmark serve
    python -m jobs.benchmark serve --only latency --clients 1,8,32
    python -m jobs.benchmark serve --soak 2000
    python -m jobs.benchmark serve --hostile 2000
    python -m jobs.benchmark serve --url http://127.0.0.1:8000 --only latency
    python -m jobs.benchmark serve --peer http://127.0.0.1:8080 --clients 1,8

The service is started from --config, on a free port of 127.0.0.1, once for each configuration that the scenarios need,
and stopped again. The same command resumes an interrupted run.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from jobs.arguments import (
    benchmark_command,
    benchmark_file,
    benchmark_parser,
    check_out,
    fields_of,
    numbers,
    quiet_transformers,
    run_benchmark,
)
from pasta.benchmark.load.client import connect
from pasta.benchmark.load.peer import first_model
from pasta.benchmark.load.plan import PLAN, Layout
from pasta.benchmark.load.scenarios import Bench, Memory
from pasta.benchmark.load.service import Service, formats_of, paused
from pasta.benchmark.load.settings import HOSTILE, PEER, SCENARIOS, SOAK, LoadSettings
from pasta.benchmark.load.ways import find_ways
from pasta.benchmark.machine import code_fingerprint, describe_machine, machine_identity, model_fingerprint
from pasta.benchmark.measurement import MeasuredPart, Measurement
from pasta.benchmark.metrics import Report
from pasta.benchmark.options import check_answers
from pasta.data.atlas import heldout_prompts
from pasta.data.atlas_keys import ATLAS
from pasta.data.linearise import Messages
from pasta.data.prompts import PromptsSection
from pasta.engine import EngineConfig
from pasta.errors import UserError
from pasta.evaluation.prompts import read_prompts
from pasta.interpreter import Limits
from pasta.stages.records import Record, RecordFile
from serve.config import KeySettings, ServeConfig
from serve.launch import LOCAL, ServiceConfig, read_service_config, running
from serve.ray_start import ROOT

if TYPE_CHECKING:
    from pasta.benchmark.load.bare import Bare

#: Held-out prompts of the atlas to choose from.
_ATLAS_PROMPTS = 200


class ServeBenchmark:
    """Measures scenarios of a service: one that is started here from ``config``, or the one at ``url``."""

    def __init__(self, settings: LoadSettings, config: ServiceConfig, source: str, command: str) -> None:
        self.settings, self._config, self._source = settings, config, source
        modes = {name: model.mode for name, model in config.args.models.items()}
        self._ways = find_ways(modes)
        self._prompts, self._independent = self._read_prompts()
        self._kept = Measurement(settings, command)
        self._files: dict[str, RecordFile] = {}

    def run(self, url: str | None = None, api_key: str | None = None) -> Report:
        """Measure every scenario of the settings; returns what came out."""
        report, scenarios = Report(), [name for name in PLAN if name in self.settings.scenarios]
        with self._kept.alone():
            self._files = {name: self._open(name, url) for name in scenarios}
            for layout in dict.fromkeys(PLAN[name].layout for name in scenarios):
                mine = [name for name in scenarios if PLAN[name].layout == layout]
                if any(
                    key not in self._files[name] for name in mine for key in PLAN[name].keys(self.settings)
                ):
                    with self._service(layout, url) as found:
                        asyncio.run(self._measure(found, api_key, mine, layout, None if url else memory))
                for name in mine:
                    records = [self._files[name].records[key] for key in PLAN[name].keys(self.settings)]
                    report.add(*PLAN[name].report(records))
                    self._draw(name, records)
                    self._kept.write(report, complete=name == scenarios[-1], formats=self._formats())
        return report

    def _formats(self) -> dict[str, str]:
        """The number format of each model in what has been measured: several if a service has chosen another one."""
        names: dict[str, set[str]] = {}
        for record in (record for file in self._files.values() for record in file.records.values()):
            for model, chosen in record["formats"].items():
                names.setdefault(model, set()).add(chosen["name"])
        return {model: ", ".join(sorted(found)) for model, found in names.items()}

    def _draw(self, name: str, records: Sequence[Record]) -> None:
        draw, picture = PLAN[name].draw, self.settings.out.with_suffix(f".{name}.png")
        if draw is not None and importlib.util.find_spec("matplotlib") is not None:
            draw(records, picture)
            self._kept.say(f"drawn: {picture}")

    def violations(self) -> list[str]:
        """What was found that must not happen, a line each: by the soak, or with hostile requests."""
        return [
            f"{name}: {line}"
            for name, file in self._files.items()
            for line in PLAN[name].violations([file.records[key] for key in PLAN[name].keys(self.settings)])
        ]

    # -- measuring -------------------------------------------------------------------------------------

    async def _measure(
        self, url: str, api_key: str | None, scenarios: Sequence[str], layout: Layout, memory: Memory | None
    ) -> None:
        async with connect(url, api_key) as client:
            formats = await formats_of(client.http, url, self._ways.values())
            bench = Bench(
                self.settings,
                Service(client, self.settings.timeout_s),
                self._ways,
                self._prompts,
                self._independent,
                self._load_bare,
                memory,
                self._kept.say,
                self._config.args.max_body_bytes,
                replicas if memory else None,
                pause_service if memory else contextlib.nullcontext,
            )
            await bench.warm_up(1 if layout == "small budget" else max(self.settings.clients))
            for name in scenarios:
                keys, title = PLAN[name].keys(self.settings), f"serve, {name}"
                part = MeasuredPart(self._files[name], keys, "measurements", title, self._kept.say)
                for key in part.missing:
                    record = {**await PLAN[name].measure(bench, key), "formats": formats}
                    if record.get("ended") == "interrupted":
                        self._keep_part(name, record)
                    part.add(key, record)

    def _keep_part(self, name: str, record: Record) -> NoReturn:
        """Keep the records of an interrupted soak under another key: the same command then measures it anew."""
        self._files[name].add("interrupted", record)
        report = Report()
        report.add(*PLAN[name].report([record]))
        self._kept.write(report, complete=False)
        raise KeyboardInterrupt

    @contextlib.contextmanager
    def _service(self, layout: Layout, url: str | None) -> Iterator[str]:
        if url is not None:
            yield url
            return
        config = dataclasses.replace(self._config, port=0, host="127.0.0.1", args=self._args(layout))
        with running(config, quiet=True, progress=lambda line: self._kept.say(f"service: {line} …")) as found:
            yield found.url

    def _args(self, layout: Layout) -> ServeConfig:
        return with_layout(self._config.args, layout, self.settings.max_tokens)

    def _load_bare(self) -> "Bare":
        import torch

        from pasta.benchmark.load.bare import Bare, Models
        from pasta.engine.loading import load_model

        args = self._config.args
        self._kept.say("loading the bare engine")
        torch.set_num_threads(args.decoder.threads)
        names = {way.model for way in self._ways.values()}
        loaded = {
            name: load_model(model.location, dtype=model.dtype, device=model.device)
            for name, model in args.models.items()
            if name in names
        }
        limits = Limits(
            max_threads=args.limits.max_threads,
            max_depth=args.limits.max_depth,
            max_chunk_tokens=args.limits.max_chunk_tokens,
            max_tokens=self.settings.max_tokens + 1,  # the end of text counts as a token, as in the service
        )
        config = EngineConfig.of(args.engine)
        return Bare(Models(loaded, config, limits), [*self._ways.values()])

    # -- inputs and files ------------------------------------------------------------------------------

    def _read_prompts(self) -> tuple[list[Messages], list[Messages]]:
        settings = self.settings
        if self._source == ATLAS:
            tasks = heldout_prompts(max(_ATLAS_PROMPTS, settings.prompts_needed))
            prompts = [task.messages for task in tasks]
            independent = [task.messages for task in tasks if task.independent]
        else:
            prompts = independent = [prompt.messages for prompt in read_prompts(PromptsSection(self._source))]
        for option, wanted, found in (
            ("prompts", settings.prompts_needed, prompts),
            ("pairs", settings.pairs, independent),
        ):
            if wanted > len(found):
                raise UserError(f"--{option}: {wanted}, but {self._source} has {len(found)} such prompts")
        return [*prompts], [*independent]

    def _open(self, name: str, url: str | None) -> RecordFile:
        settings = {key: getattr(self.settings, key) for key in ("max_tokens", *PLAN[name].settings)}
        identity = {
            "code": code_fingerprint(ROOT / "serve"),
            "settings": settings,
            "prompts": [self._prompts, self._independent],
            "models": [
                model_fingerprint(Path(model.location)) if Path(model.location).is_dir() else model.location
                for model in self._config.args.models.values()
            ],
            "machine": machine_identity() | {"cores": describe_machine()["cores"]},
        }
        service: Any = url or [self._args(PLAN[name].layout).model_dump(), self._config.env_vars]
        return self._kept.open(name, {**identity, "service": service})


def with_layout(args: ServeConfig, layout: Layout, max_tokens: int) -> ServeConfig:
    """The configuration as a layout needs it, without API keys: only this process sends requests."""
    changes: dict[str, Any] = {"keys": KeySettings()}
    if layout == "one decoder":
        changes["decoder"] = args.decoder.model_copy(update={"num_replicas": 1})
    if layout == "behind a proxy" and args.front.proxy == "none":
        changes["front"] = args.front.model_copy(update={"proxy": "ray"})
    if layout == "small budget":
        # Room for two answers: one with its prompt fits into either kind's part of the budget, two do not.
        changes["admission"] = args.admission.model_copy(update={"budget_tokens": 2 * max_tokens})
    return args.model_copy(update=changes)


def pause_service() -> contextlib.AbstractContextManager[None]:
    """A context in which every process that this one has started, directly or not, is stopped."""
    return paused([process.pid for process in psutil.Process().children(recursive=True)])


def replicas(kind: str) -> list[int]:
    """The process ids of the service's replicas of a kind, such as Gateway."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if _title(process.cmdline()).endswith(f":{kind}"):
                found.append(process.pid)
    return found


def memory() -> dict[str, float]:
    """MiB of memory of its own, of every process that this one has started, directly or not."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            used = process.memory_info()
            # Memory mapped from files or from Ray's object store is shared: it counts for no process.
            mib = (used.rss - getattr(used, "shared", 0)) / 2**20
            found[f"{_title(process.cmdline())} {process.pid}"] = mib
    return found


def _title(words: Sequence[str]) -> str:
    """The name of a process: Ray's name for an actor, whatever it is doing; else its program, or its script."""
    if words and words[0].startswith("ray::"):
        return words[0].partition(".")[0]
    names = [os.path.basename(word) for word in words] or ["?"]
    script = next((name for name in names if name.endswith(".py")), names[0])
    return script if names[0].startswith("python") else names[0]


def main(arguments: list[str]) -> int:
    """Run the command; ``arguments`` are those behind ``serve``."""
    options = parser().parse_args(arguments)
    alone = _alone(options)
    if alone and len(both := alone if options.only is None else [*alone, "only"]) > 1:
        raise UserError(f"--{both[1]}: it does not go with --{both[0]}; run one after the other")
    scenarios: tuple[str, ...] = (*alone,) or (SCENARIOS if options.only is None else (options.only,))
    out = options.out or benchmark_file(serve_name(options))
    settings = LoadSettings(**fields_of(LoadSettings, options) | {"out": out, "scenarios": scenarios})
    _check_url(options, settings)
    check_out(settings.out)
    if (url := settings.peer) is not None:
        settings = dataclasses.replace(settings, peer_model=asyncio.run(_peer_model(url, options.peer_model)))
    quiet_transformers()
    command, config = benchmark_command("serve", *arguments), read_service_config(options.config)
    if options.url is None:  # another service's slots are not known
        check_answers(settings, "max_tokens", config.args.engine.slot_tokens)
    benchmark = ServeBenchmark(settings, config, options.source, command)
    api_key = os.environ.get(options.api_key_env) if options.url else None
    if code := run_benchmark(lambda: benchmark.run(options.url, api_key), out, fresh=settings.fresh):
        return code
    for line in (found := benchmark.violations()):
        print(f"error: {line}", file=sys.stderr)
    return 1 if found else 0


async def _peer_model(url: str, chosen: str | None) -> str:
    """The peer's model. Raises ``UserError`` if nobody answers there, before a service is started."""
    async with connect(url) as client:
        first = await first_model(client.http, url)
    return chosen or first


def _check_url(options: argparse.Namespace, settings: LoadSettings) -> None:
    if options.url is None:
        return
    own = [name for name in settings.scenarios if PLAN[name].own_service]
    if own and settings.scenarios == SCENARIOS:
        raise UserError(
            f"--url: {', '.join(own)} need a service of their own; name another scenario with --only"
        )
    if own:
        raise UserError(f"--url: {own[0]} needs a service of its own; leave --url out")
    if settings.scenarios == (SOAK,) and settings.kill_every_s:
        raise UserError(
            "--url: processes are killed in a service that is started here only; add --kill-every 0"
        )


def serve_name(options: argparse.Namespace) -> str:
    """The name of the file to write without ``--out``."""
    return "-".join(["serve", *_alone(options)])


def _alone(options: argparse.Namespace) -> list[str]:
    """The scenarios that run by themselves, of those that are asked for."""
    return [name for name in (SOAK, HOSTILE, PEER) if getattr(options, name) is not None]


def parser() -> argparse.ArgumentParser:
    """The command line behind ``serve``."""
    defaults = LoadSettings(Path())
    made = benchmark_parser("serve", __doc__, allow_abbrev=True)
    add = made.add_argument
    add("--config", type=Path, default=LOCAL, help="the service (configs/serve/local.yaml)")
    add("--url", help="measure the service that runs there; its models are those of --config")
    add("--api-key-env", default="OPENAI_API_KEY", help="variable with the key for --url (OPENAI_API_KEY)")
    add("--only", choices=SCENARIOS, help="one scenario: see BENCHMARKS.md")
    add("--source", default=ATLAS, help='prompts: atlas, or a JSONL file of {"messages"} (atlas)')
    add("--clients", type=numbers("1,8,32"), help=f"clients at once ({','.join(map(str, defaults.clients))})")
    for name, what in (
        ("prompts", "prompts that so many clients ask"),
        ("max_tokens", "longest answer"),
        ("rounds", "repetitions of latency, throughput and kill"),
        ("pairs", "prompts of speedup, spread and disconnect"),
        ("refusals", "requests that are refused"),
        ("soak_clients", "clients of the soak"),
        ("soak_seed", "the seed of its requests"),
        ("hostile_seed", "the seed of the hostile requests"),
    ):
        add(f"--{name.replace('_', '-')}", type=int, help=f"{what} ({getattr(defaults, name)})")
    add(
        "--soak",
        type=int,
        help="only the soak, of so many requests; exit code 1 if anything is lost or stuck",
    )
    add(
        "--hostile",
        type=int,
        help="only hostile requests, so many; exit code 1 if one has a 5xx, is dropped, or keeps others waiting",
    )
    add(
        "--peer",
        help="only a comparison with the OpenAI-compatible server at this URL, of the sequential model's weights",
    )
    add("--peer-model", help="its model (the first that it lists)")
    add("--turns", type=int, help="questions of a conversation beside it; each block has its own (1)")
    add("--think", dest="think_s", type=float, help="seconds from an answer to the next question (0)")
    add(
        "--kill-every",
        dest="kill_every_s",
        type=float,
        help="seconds between the soak's kills of a decoder, an Interpreter, a Gateway, … (15; 0: none)",
    )
    add("--soak-seconds", dest="soak_s", type=float, help="end the soak after so many seconds (no end)")
    add("--timeout", dest="timeout_s", type=float, help="seconds after which a request is stuck (180)")
    add("--out", type=Path, help="the JSON file to write (runs/benchmark/serve.json); records go beside it")
    add("--fresh", action="store_true", help="measure again what an earlier run has measured")
    return made
