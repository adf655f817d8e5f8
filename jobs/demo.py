"""See PASTA work, in a minute:

    python -m jobs.demo

Starts the service on this machine (a Ray of its own, a free port of 127.0.0.1), asks three held-out prompts
over HTTP, sequentially and in parallel, draws the threads over time, says what was measured, and stops
everything it started.
"""

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import httpx

from pasta.cli.terminal import columns, print_drawing, shorten, wants_color
from pasta.data.atlas import AtlasTask, grade, heldout_prompts
from pasta.data.timeline import LEGEND, TimelineRow, render_rows
from pasta.entrypoint import CommandParser, run_main
from pasta.errors import UserError
from pasta.lang import Sync
from serve.config import KeySettings
from serve.imports import uncollected, without_torch
from serve.launch import LOCAL, ServiceConfig, read_service_config, running

TIMEOUT_S = 120.0
#: How often each model is asked, after a first time: a small model answers in less than a tenth of a second, so that a
#: single time says little.
ROUNDS = 7


@dataclass(frozen=True)
class Run:
    """One answer over HTTP: text, events with times in seconds, figures, and the client's wall clock."""

    text: str
    events: list[dict[str, Any]]
    pasta: dict[str, Any]
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the text (tags not counted) a second."""
        rate: float = self.pasta["sequential_tokens"] / self.wall_s
        return rate


@dataclass(frozen=True)
class SideBySide:
    """The same prompt answered both ways."""

    task: AtlasTask
    sequential: Run
    parallel: Run

    @property
    def speedup(self) -> float:
        """Ratio of the wall clocks."""
        return self.sequential.wall_s / self.parallel.wall_s


def main() -> int:
    """Entry point."""
    parser = CommandParser(prog="python -m jobs.demo", description=(__doc__ or "").split(":\n")[0])
    parser.add_argument("--config", type=Path, default=LOCAL, help="default: configs/serve/local.yaml")
    parser.add_argument(
        "--port", type=int, default=0, help="port of 127.0.0.1 to serve on; default: a free one"
    )
    arguments = parser.parse_args()
    with uncollected():
        without_torch()
        config = for_this_machine(read_service_config(arguments.config), arguments.port)
    parallel, sequential = served_pair(config, arguments.config)
    started = time.perf_counter()
    print_drawing("PASTA: the same prompts, answered one token after another and in parallel threads")

    def progress(line: str) -> None:
        print_drawing(f"[{time.perf_counter() - started:5.1f} s] {line}")

    comparisons = []
    with (
        running(config, quiet=True, progress=progress) as service,
        httpx.Client(base_url=service.url, timeout=TIMEOUT_S, trust_env=False) as http,
    ):
        progress(f"ready at {service.url}/v1, an OpenAI-compatible API")
        for task in chosen_prompts():
            progress(f"asking: {shorten(task.prompt, 90)}")
            comparison = ask_both(http, task, parallel, sequential)
            comparisons.append(comparison)
            lines = comparison_text(comparison, across=columns(110, 140), color=wants_color())
            print_drawing("\n".join(lines))
        print_drawing("\n".join(speedup_lines(comparisons)))
        progress("stopping")
    progress("everything that was started is stopped")
    return 0


def for_this_machine(config: ServiceConfig, port: int) -> ServiceConfig:
    """The configuration on a port of this machine alone, without API keys and certificate: only the demo asks."""
    return dataclasses.replace(
        config,
        host="127.0.0.1",
        port=port,
        args=config.args.model_copy(update={"keys": KeySettings()}),
        ssl_certfile=None,
        ssl_keyfile=None,
    )


def served_pair(config: ServiceConfig, path: Path) -> tuple[str, str]:
    """Names of a model that decodes in parallel and one that only decodes sequentially, its baseline."""
    by_mode = {model.mode: name for name, model in reversed(config.args.models.items())}
    if set(by_mode) != {"parallel", "sequential"}:
        raise UserError(
            f"{path}: models: expected one of mode parallel and one of mode sequential to compare"
        )
    return by_mode["parallel"], by_mode["sequential"]


def chosen_prompts() -> list[AtlasTask]:
    """Three held-out prompts: many independent parts; parts that a conclusion reads; and no independent parts.

    The third is laid out like the first: there the model must not go parallel, and there is nothing to gain.
    """
    tasks = heldout_prompts(200)

    def chunks(task: AtlasTask) -> int:
        return sum(1 for _ in task.document.chunks())

    def joins(task: AtlasTask) -> bool:
        return any(isinstance(item, Sync) for item in task.document.items)

    many = next(
        task for task in tasks if 6 <= chunks(task) <= 8 and task.document.depth() == 1 and not joins(task)
    )
    joined = next(task for task in tasks if chunks(task) >= 4 and joins(task))
    dependent = next(task for task in tasks if not chunks(task) and len(task.answer) > 250)
    return [many, joined, dependent]


def ask_both(http: httpx.Client, task: AtlasTask, parallel: str, sequential: str) -> SideBySide:
    """Ask both models in turn; of each the run with the median time counts, but for the first."""
    rounds = [[ask(http, model, task.prompt) for model in (sequential, parallel)] for _ in range(1 + ROUNDS)]
    middle = (sorted(runs, key=lambda run: run.wall_s)[ROUNDS // 2] for runs in zip(*rounds[1:], strict=True))
    return SideBySide(task, *middle)


def ask(http: httpx.Client, model: str, prompt: str) -> Run:
    """Stream one greedy answer with its events."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "stream": True,
        "pasta": {"events": True},
    }
    started = time.perf_counter()
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"the service answered {response.status_code}: {response.read().decode()}")
        chunks = list(data_of(response))
    wall_s = time.perf_counter() - started
    final: dict[str, Any] = chunks[-1]["pasta"]
    events = [event for chunk in chunks for event in chunk.get("pasta", {}).get("events", [])]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    return Run(text, events, final, wall_s)


def data_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The chunks of a stream of server-sent events."""
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise RuntimeError(f"the service broke off: {chunk['error']['message']}")
            yield chunk


# -- pictures --------------------------------------------------------------------------------------------


def rows_of(run: Run, label: str) -> list[TimelineRow]:
    """An answer's threads over seconds, in reading order."""
    threads: dict[int, list[dict[str, Any]]] = {0: []}
    parents: dict[int, dict[str, Any]] = {}
    for event in run.events:
        threads.setdefault(event["thread"], []).append(event)
        if event["type"] == "fork":
            parents[event["child"]] = event
            threads.setdefault(event["child"], [])

    def lane(thread: int, depth: int) -> Iterator[TimelineRow]:
        own = threads[thread]
        fork = parents.get(thread)
        times = [event["time"] for event in own if event["type"] == "token"]
        start = fork["time"] if fork else 0.0
        children = [event for event in own if event["type"] == "fork"]
        joins = [event["time"] for event in own if event["type"] == "join"]
        waits = [event["time"] for event in own if event["type"] == "wait"]
        yield TimelineRow(
            label=fork["topic"] if fork else label,
            start=start,
            end=max([start, *times, *joins]),
            num_tokens=len(times),
            depth=depth,
            estimate=fork["estimate"] if fork else 0,
            forks=tuple(child["time"] for child in children),
            joins=tuple(joins),
            waits=tuple(
                (wait, min((join for join in joins if join >= wait), default=wait)) for wait in waits
            ),
        )
        for child in children:
            yield from lane(child["child"], depth + 1)

    return list(lane(0, 0))


def comparison_text(comparison: SideBySide, across: int, color: bool) -> list[str]:
    """A prompt, its answer, and both runs' lanes on one time axis."""
    sequential, parallel = comparison.sequential, comparison.parallel
    lanes = [*rows_of(sequential, "sequential"), *rows_of(parallel, "parallel")]
    same = sequential.text == parallel.text
    out = ["", f"Q: {comparison.task.prompt}", "", printable(parallel.text), ""]
    if not same:
        out += ["(the sequential model's answer differs:)", "", printable(sequential.text), ""]
    out += [render_rows(lanes, across, color, "seconds"), LEGEND]
    threads = parallel.pasta["threads"]
    out += [
        f"sequential {figures(sequential, comparison.task)}",
        f"parallel   {figures(parallel, comparison.task)}, {threads} thread{'s' * (threads != 1)}",
        f"{comparison.speedup:.2f} times as fast, measured at the client",
        "",
    ]
    return out


def figures(run: Run, task: AtlasTask) -> str:
    """A run's figures on one line."""
    graded = grade(task, run.text)
    return (
        f"{run.wall_s:6.2f} s, {run.pasta['critical_path']:4d} steps for {run.pasta['sequential_tokens']:4d} tokens "
        f"of text, {run.tokens_per_s:5.0f} tokens/s, {graded.right} of {graded.total} statements right"
    )


def speedup_lines(comparisons: Sequence[SideBySide]) -> list[str]:
    """The speedup on the three prompts, and what it does not show."""
    mean = geometric_mean([comparison.speedup for comparison in comparisons])
    each = ", ".join(f"{comparison.speedup:.2f}" for comparison in comparisons)
    return [
        f"Speedup of the parallel model over its sequential twin on this machine: {each}; geometric mean {mean:.2f}.",
        f"Wall clock over HTTP, greedy, one request at a time, medians of {ROUNDS} in turn. Three prompts are an "
        "example, not a measurement: make benchmark takes 200.",
        "",
    ]


def printable(text: str) -> str:
    """A model's text without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "·" for c in text.strip())


if __name__ == "__main__":
    run_main(main)
