"""Speedup against the sequential twin: batch 1, greedy, wall clock.

Both models are decoded in one process, prompt by prompt in turn, so that the machine's drift cancels. Each
prompt is decoded once to warm up and then timed.
"""

import statistics
import time
from collections.abc import Mapping, Sequence

from pasta.benchmark.documents import Entry
from pasta.benchmark.metrics import Metric
from pasta.engine import Engine, Request, Result
from pasta.interpreter import UNBOUNDED, Limits
from pasta.stages.records import Record
from pasta.statistics import bootstrap


def decode_pair(
    twin: Engine, pasta: Engine, prompt_ids: Sequence[int], limits: Limits, *, repeats: int
) -> tuple[Record, Result, Result]:
    """Decode a prompt with both models; after a warm-up, ``repeats`` timed runs of each in turn.

    With ``repeats`` 0 nothing is timed. Returns the record and the two results.
    """
    ways = {
        "twin": (twin, Request(prompt_ids=prompt_ids, limits=limits, parallel=False)),
        "pasta": (pasta, Request(prompt_ids=prompt_ids, limits=limits)),
    }
    results, _ = _in_turn(ways, 1)
    _, seconds = _in_turn(ways, repeats)
    return _compared(results, seconds), results["twin"], results["pasta"]


def replay_pair(engine: Engine, entry: Entry, *, repeats: int) -> Record:
    """Replay one answer without its tags and with its threads, ``repeats`` timed runs of each in turn: its tokens are
    forced, so that every step costs what it costs, and the weights may be random."""
    ways = {
        name: (engine, Request(prompt_ids=entry.prompt, limits=UNBOUNDED, parallel=parallel, forced=forced))
        for name, parallel, forced in (
            ("sequential", False, entry.sequential),
            ("lanes", True, entry.annotated),
        )
    }
    return _compared(*_in_turn(ways, repeats))


def speed_metrics(records: Sequence[Record]) -> list[Metric]:
    """Realised and theoretical speedup over prompts with independent parts, and over all; how many are left out since
    an answer was cut."""
    metrics = []
    ended = [record for record in records if both_ended(record)]
    if cut := len(records) - len(ended):
        label = "prompts without a speedup: an answer was cut at the length limit"
        metrics.append(Metric("speedup.cut", label, cut))
    groups = {"independent": [record for record in ended if record["independent"]], "all": ended}
    for group, members in groups.items():
        if not members:
            continue
        who = "prompts with independent parts" if group == "independent" else "all prompts"
        targets = {"realised": {"independent": 2.2, "all": 1.7}[group], "ratio": 0.9}
        metrics += _speedups(members, "speedup", group, who, targets, f"{len(members)} prompts")
    note = "wall clock ÷ steps, prefill included"
    twin, pasta = (_step_ms([record[who] for record in records]) for who in ("twin", "pasta"))
    return [
        *metrics,
        Metric("step_ms.twin", "milliseconds a step, sequential twin", twin, note=note),
        Metric("step_ms.pasta", "milliseconds a step, PASTA", pasta, note=note),
    ]


def both_ended(record: Record) -> bool:
    """Whether both answers ended by themselves: the full time of one that was cut is unknown, as in an evaluation."""
    return all(record[who]["finish_reason"] == "stop" for who in ("twin", "pasta"))


def replay_metrics(records: Sequence[Record], name: str, label: str) -> list[Metric]:
    """Realised and theoretical speedup of replayed documents."""
    note = f"{len(records)} documents"
    return _speedups(records, "replay", name, f"replay on {label}", {"ratio": 0.95}, note)


def _speedups(
    records: Sequence[Record], stage: str, name: str, where: str, targets: Mapping[str, float], note: str
) -> list[Metric]:
    values = {
        "realised": ("realised speedup", [record["realised"] for record in records]),
        "theoretical": ("theoretical speedup", [record["theoretical"] for record in records]),
        "ratio": (
            "realised ÷ theoretical",
            [record["realised"] / record["theoretical"] for record in records],
        ),
    }
    return [
        Metric.of(
            f"{stage}.{key}.{name}", f"{what}, {where}", bootstrap(each), target=targets.get(key), note=note
        )
        for key, (what, each) in values.items()
    ]


def _step_ms(described: Sequence[Record]) -> float:
    return 1e3 * sum(map(_seconds, described)) / sum(answer["steps"] for answer in described)


def _described(result: Result) -> Record:
    lanes = result.trace.lanes()
    return {
        "tokens": result.num_tokens,
        "critical_path": result.critical_path,
        "steps": result.steps,
        "threads": len(result.trace.threads),
        "mean_lanes": round(sum(lanes) / max(len(lanes), 1), 3),
        "waited_steps": sum(to - since for thread in result.trace.threads for since, to in thread.waits),
        "ttft_s": result.ttft_s,
        "finish_reason": result.finish_reason,
    }


def _in_turn(
    ways: Mapping[str, tuple[Engine, Request]], repeats: int
) -> tuple[dict[str, Result], dict[str, list[float]]]:
    """Decode each way in turn, ``repeats`` times; returns each one's last result, and all its seconds."""
    results: dict[str, Result] = {}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, (engine, request) in ways.items():
            begun = time.perf_counter()
            results[name] = engine.generate(request)
            seconds[name].append(time.perf_counter() - begun)
    return results, seconds


def _compared(results: Mapping[str, Result], seconds: Mapping[str, list[float]]) -> Record:
    """The record of two ways, the slow one first; without seconds nothing is timed."""
    slow, fast = results
    record: Record = {name: _described(result) for name, result in results.items()}
    record["theoretical"] = results[slow].num_tokens / results[fast].critical_path
    if seconds[slow]:
        for name in results:
            record[name]["seconds"] = seconds[name]
        record["realised"] = _seconds(record[slow]) / _seconds(record[fast])
    return record


def _seconds(described: Record) -> float:
    return statistics.median(described["seconds"])
