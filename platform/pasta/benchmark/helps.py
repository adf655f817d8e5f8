"""What each of the engine's optimisations ("helps") is worth on the shipped models, and whether it changes a token.

In float32 none may change one. Every prompt is decoded greedily and sampled, with each set of helps in turn. Every
fourth answer has limits that may cut it: a model is compared with itself over all answers, with the other one over
those without.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pasta.benchmark.measurement import MeasuredPart
from pasta.benchmark.metrics import Found, Metric
from pasta.data.atlas import AtlasTask
from pasta.engine import Engine, EngineConfig, LoadedModel, Request, SamplingParams
from pasta.interpreter import Limits
from pasta.markdown import markdown
from pasta.stages.records import Record
from pasta.statistics import bootstrap

NO_HELP, ALL_HELP = "no help", "all help"
_SIZES: dict[str, Any] = {"num_slots": 1, "reuse_prefixes": False}
#: The engine's settings for each set of helps; the others are compared with the first.
WAYS = {
    NO_HELP: EngineConfig(**_SIZES, jump_forward=False, drafts=0, multi_step=False),
    "multi-step": EngineConfig(**_SIZES, jump_forward=False, drafts=0),
    "jump-forward": EngineConfig(**_SIZES, drafts=0, multi_step=False),
    "lookup": EngineConfig(**_SIZES, jump_forward=False, draft_heads=False, multi_step=False),
    "drafts": EngineConfig(**_SIZES, jump_forward=False, multi_step=False),
    ALL_HELP: EngineConfig(**_SIZES),
}
#: Those that can help a sequential answer, of which nothing is forced.
SEQUENTIAL_WAYS = {way: config for way, config in WAYS.items() if way != "jump-forward"}
_TEMPERATURES = (0.0, 0.8)


class HelpBench:
    """Decodes prompts with the twin and the PASTA model, with each set of helps in turn."""

    def __init__(self, twin: LoadedModel, pasta: LoadedModel, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._engines = {
            (name, way): Engine(model, config)
            for name, model, ways in (("twin", twin, SEQUENTIAL_WAYS), ("pasta", pasta, WAYS))
            for way, config in ways.items()
        }

    def run(self, part: MeasuredPart[int], tasks: Sequence[AtlasTask]) -> None:
        """Measure the missing prompts, after one that warms the engines up."""
        if part.missing:
            self._measure(0, tasks[0])
        for number in part.missing:
            part.add(number, self._measure(number, tasks[number]))

    def _measure(self, number: int, task: AtlasTask) -> Record:
        """Seconds, steps and tokens by model, helps and temperature, how many answers a help has changed, and whether
        the greedy ones are ``limited``: may be cut, or are."""
        limited = [(number + at) % 4 == 0 for at in range(len(_TEMPERATURES))]
        record: Record = {"independent": task.independent, "limited": limited[0], "changed": 0, "answers": 0}
        for temperature, is_limited in zip(_TEMPERATURES, limited, strict=True):
            plain: dict[str, Any] = {}
            limits = Limits(max_tokens=self._max_tokens)
            if is_limited:
                limits = Limits(
                    max_tokens=min(self._max_tokens, 60 + number % 60), max_threads=2 + number % 5
                )
            for (model, way), engine in self._engines.items():
                request = Request(
                    engine.codec.encode_prompt(task.messages),
                    limits=limits,
                    sampling=SamplingParams(temperature=temperature, seed=number),
                    parallel=model == "pasta",
                )
                begun = time.perf_counter()
                result = engine.generate(request)
                seconds = time.perf_counter() - begun
                answer = result.response_ids, result.finish_reason, result.critical_path
                record["changed"] += answer != plain.setdefault(model, answer)
                record["answers"] += way != NO_HELP
                record["limited"] |= temperature == _TEMPERATURES[0] and result.finish_reason != "stop"
                record[f"{model}, {way}, {temperature}"] = [
                    seconds,
                    result.steps,
                    result.num_tokens,
                    result.critical_path,
                ]
        return record


def help_report(records: Sequence[Record], label: str) -> Found:
    """The metrics, and the table by its title."""
    metrics = [
        Metric(
            "help.changed",
            f"answers changed by any help, greedy and sampled, {label}",
            sum(record["changed"] for record in records),
            target=0,
            sense="at most",
            count=sum(record["answers"] for record in records),
        )
    ]
    # What a limit has cut says another part of its answer in one model than in the other.
    whole = [record for record in records if not record["limited"]]
    independent = [record for record in whole if record["independent"]]
    for key, name, (model, way), base, chosen, target in (
        ("twin", "twin with drafts ÷ without", ("twin", "drafts"), ("twin", NO_HELP), records, 1.6),
        ("pasta", "PASTA with all help ÷ without", ("pasta", ALL_HELP), ("pasta", NO_HELP), records, None),
        ("plain", "PASTA with all help ÷ plain twin", ("pasta", ALL_HELP), ("twin", NO_HELP), whole, 2.8),
        (
            "plain_independent",
            "PASTA with all help ÷ plain twin, independent parts",
            ("pasta", ALL_HELP),
            ("twin", NO_HELP),
            independent,
            3.6,
        ),
        (
            "same_independent",
            "PASTA ÷ twin, both with all help, independent parts",
            ("pasta", ALL_HELP),
            ("twin", ALL_HELP),
            independent,
            2.2,
        ),
    ):
        ratios = [_seconds(record, *base) / _seconds(record, model, way) for record in chosen]
        if ratios:
            metrics.append(Metric.of(f"help.{key}", f"{name}, {label}", bootstrap(ratios), target=target))
    return metrics, {f"Helps, {label}": _table(records)}


def _seconds(record: Mapping[str, Any], model: str, way: str) -> float:
    """Seconds of the greedy answer."""
    return float(record[f"{model}, {way}, {_TEMPERATURES[0]}"][0])


def _table(records: Sequence[Record]) -> str:
    rows = []
    for key in [key for key in records[0] if "," in key]:
        seconds, steps, tokens, critical = (sum(record[key][n] for record in records) for n in range(4))
        model, way, temperature = key.split(", ")
        base = sum(record[f"{model}, {NO_HELP}, {temperature}"][0] for record in records)
        rows.append(
            [
                model,
                way,
                temperature,
                f"{steps / critical:.3f}",
                f"{tokens / steps:.2f}",
                f"{1e3 * seconds / steps:.2f}",
                f"{base / seconds:.2f}",
            ]
        )
    titles = ["model", "help", "temperature", "steps ÷ critical path", "tokens a step", "ms a step"]
    return markdown([*titles, "seconds without ÷ with"], rows)
