"""Measure the service without its engines: stand-ins for the Decoders write tokens at a set pace, without a model.

    python -m jobs.benchmark front
    python -m jobs.benchmark front --interpreters 1,2,4 --streams 64 --token-ms 5
    python -m jobs.benchmark front --interpreters 1 --proxies ray,haproxy,none --rounds 3

Starts the service of --config once for each number of Interpreters (and as many Gateways) and each way to reach it
(front.proxy), with an API key, all of them in turn --rounds times. Says how many tokens a second arrive at its clients
and what each kind of process takes of a processor for a token, means over the rounds. Where the machine has fewer cores
than the service has processes, that second figure is the one that scales.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import get_args

import psutil

from jobs.arguments import benchmark_command, benchmark_parser, check_out, numbers
from pasta.benchmark.load.client import Ask, TimedReply, closed_loop, connect, send
from pasta.benchmark.machine import describe_machine
from pasta.benchmark.options import check_least
from pasta.errors import UserError
from pasta.markdown import markdown
from pasta.stages.records import Record, write_json
from pasta.statistics import grouped
from serve.config import KeySettings, Proxy
from serve.keys import new_key
from serve.launch import LOCAL, ServiceConfig, check_local, read_service_config, running

_QUESTION = [{"role": "user", "content": "Write for as long as you may."}]
_TIMEOUT_S = 600.0
_MOST_INTERPRETERS, _MOST_MS = 64, 60_000
#: Names of the service's processes in the report, by a word of their command lines.
_KINDS = {
    ":Interpreter": "Interpreter",
    ":Gateway": "Gateway",
    ":Decoder": "Decoder stand-in",
    "ProxyActor": "proxy",
    "HAProxyManager": "proxy",
    "haproxy": "proxy",
    "ServeController": "controller",
}


@dataclasses.dataclass(frozen=True)
class FrontLoad:
    """``streams`` clients at once, each with ``answers`` answers of ``tokens`` tokens, one each ``token_ms``."""

    streams: int
    answers: int
    tokens: int
    token_ms: float
    decoders: int

    def __post_init__(self) -> None:
        check_least(self, 1, "streams", "answers", "tokens", "decoders")
        if not 0 < self.token_ms <= _MOST_MS:
            raise UserError(
                f"--token-ms: {self.token_ms:g}, expected a positive number, at most {_MOST_MS:,}"
            )


def with_stand_ins(
    config: ServiceConfig, load: FrontLoad, interpreters: int, proxy: Proxy, keys: Path
) -> ServiceConfig:
    """The configuration with stand-ins for Decoders, so many Interpreters and Gateways, that way to reach them, this
    file of keys, and no limit that refuses a request."""
    args = config.args
    front = {"gateways": interpreters, "interpreters": interpreters, "proxy": proxy}
    changes = {
        "keys": KeySettings(file=str(keys)),
        "front": args.front.model_copy(update=front),
        "decoder": args.decoder.model_copy(
            update={"num_replicas": load.decoders, "stand_in_ms": load.token_ms, "autoscaling": None}
        ),
        "admission": args.admission.model_copy(update={"budget_tokens": 10**9}),
        "max_ongoing_requests": max(args.max_ongoing_requests, 2 * load.streams),
    }
    return dataclasses.replace(config, port=0, host="127.0.0.1", args=args.model_copy(update=changes))


def processor_s() -> Counter[str]:
    """Seconds of a processor that each kind of the service's processes, and the client, have taken."""
    own = psutil.Process()
    taken = Counter({"client": sum(own.cpu_times()[:2])})
    for process in own.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            kind = next((kind for word, kind in _KINDS.items() if word in title), "Ray")
            taken[kind] += sum(process.cpu_times()[:2])
    return taken


async def measure_load(url: str, key: str, model: str, load: FrontLoad) -> Record:
    """Ask for all answers; returns tokens a second, and microseconds of a processor a token by kind of process.

    Raises ``UserError`` if an answer does not arrive whole.
    """
    ask = Ask(_QUESTION, model, {"mode": "sequential"}, load.tokens)
    async with connect(url, key) as client:

        async def each(ask: Ask) -> TimedReply:
            return await send(client, ask, _TIMEOUT_S)

        await closed_loop([ask] * load.streams, load.streams, each)  # every connection and code path once
        before = processor_s()
        replies, seconds = await closed_loop([ask] * load.streams * load.answers, load.streams, each)
        taken = processor_s()
    for reply in replies:
        if reply.ending != "whole":
            raise UserError(f"an answer was {reply.ending}: {reply.error}")
    tokens = sum(int(reply.pasta["tokens"]) for reply in replies)
    return {
        "tokens_per_s": tokens / seconds,
        "seconds": seconds,
        "tokens": tokens,
        "processor_us_per_token": {kind: 1e6 * (taken[kind] - before[kind]) / tokens for kind in taken},
    }


def table(records: Sequence[Record]) -> str:
    """A row for each number of Interpreters and each proxy: means over the rounds."""
    kinds = ["Interpreter", "Gateway", "proxy", "Decoder stand-in", "client"]
    head = ["Interpreters", "proxy", "tokens a second", *(f"{kind}, µs a token" for kind in kinds)]
    rounds = grouped(records, lambda record: (record["interpreters"], record["proxy"]))
    rows = [
        [
            *way,
            f"{fmean(record['tokens_per_s'] for record in found):.0f}",
            *(
                f"{fmean(record['processor_us_per_token'].get(kind, 0.0) for record in found):.1f}"
                for kind in kinds
            ),
        ]
        for way, found in rounds.items()
    ]
    return markdown(head, rows)


def main(arguments: list[str]) -> int:
    """Run the command; ``arguments`` are those behind ``front``."""
    options = parser().parse_args(arguments)
    check_out(options.out)
    check_least(options, 1, "rounds")
    if not 0 < min(options.interpreters) <= max(options.interpreters) <= _MOST_INTERPRETERS:
        raise UserError(
            f"--interpreters: {','.join(map(str, options.interpreters))}, expected integers from 1 to "
            f"{_MOST_INTERPRETERS}"
        )
    load = FrontLoad(options.streams, options.answers, options.tokens, options.token_ms, options.decoders)
    config = read_service_config(options.config)
    model = next(iter(config.args.models))
    records: list[Record] = []
    written = {
        "command": benchmark_command("front", *arguments),
        "machine": describe_machine(),
        "load": dataclasses.asdict(load),
        "records": records,
    }
    ways = [(count, proxy) for count in options.interpreters for proxy in options.proxies]
    with tempfile.TemporaryDirectory(prefix="pasta-keys-") as folder:
        keys = Path(folder) / "keys.yaml"
        key = new_key(keys, "benchmark")
        services = [with_stand_ins(config, load, *way, keys) for way in ways]
        for service in services:
            check_local(service)
        for _ in range(options.rounds):
            for (interpreters, proxy), service in zip(ways, services, strict=True):
                print(f"{interpreters} Interpreters, proxy {proxy} …", file=sys.stderr, flush=True)
                with running(service, quiet=True) as started:
                    record = asyncio.run(measure_load(started.url, key, model, load))
                records.append({"interpreters": interpreters, "proxy": proxy, **record})
                write_json(options.out, written)  # each: a run that is cut keeps what it has measured
    print(table(records))
    print(f"\nwritten to {options.out}")
    return 0


def _proxies(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    for name in found:
        if name not in get_args(Proxy):
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(get_args(Proxy))}, got {name!r}")
    return found


def parser() -> argparse.ArgumentParser:
    """The command line behind ``front``."""
    made = benchmark_parser("front", __doc__, allow_abbrev=True)
    add = made.add_argument
    add("--config", type=Path, default=LOCAL, help="the service (configs/serve/local.yaml)")
    add(
        "--interpreters", type=numbers("1,2,4"), default=(1, 2, 4), help="how many, one after another (1,2,4)"
    )
    add(
        "--proxies",
        type=_proxies,
        default=("ray",),
        help="ways to reach the service, one after another: ray, haproxy, none (ray)",
    )
    add("--rounds", type=int, default=1, help="how often each is measured (1)")
    add("--decoders", type=int, default=2, help="stand-ins (2)")
    add("--streams", type=int, default=32, help="clients at once (32)")
    add("--answers", type=int, default=4, help="answers of each client (4)")
    add("--tokens", type=int, default=256, help="tokens of each answer (256)")
    add("--token-ms", type=float, default=10.0, help="milliseconds from a token to the next one (10)")
    add("--out", type=Path, default=Path("runs/benchmark/front.json"), help="the JSON file to write")
    return made
