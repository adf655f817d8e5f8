"""Real answers: of the twin and the PASTA model, each with and without helps, and with each help in turn if asked;
llama.cpp decodes as many tokens, with a draft model and without."""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from pasta.benchmark.helps import ALL_HELP, NO_HELP, SEQUENTIAL_WAYS, WAYS
from pasta.benchmark.machine import model_fingerprint
from pasta.benchmark.metrics import Found, Metric
from pasta.benchmark.peers.comparison import ShapeComparison
from pasta.benchmark.peers.decoders import Chosen
from pasta.benchmark.peers.engine import Ours
from pasta.benchmark.peers.report import peer_of
from pasta.data.atlas import AtlasTask, heldout_prompts
from pasta.engine import Engine, Request
from pasta.engine.loading import load_model
from pasta.interpreter import Limits
from pasta.markdown import markdown
from pasta.stages.records import Record
from pasta.statistics import bootstrap

_HELPED = f", {ALL_HELP}"


def measure_answers(comparison: ShapeComparison) -> list[Record]:
    """One record a prompt: seconds, steps and tokens of each greedy answer, its prompt included, and whether a limit
    ``cut`` one. llama.cpp decodes as many tokens as the twin's answer has, since what it says may be something else."""
    settings, weights = comparison.settings, comparison.weights
    assert weights.parallel is not None
    identity = {
        # Fewer held-out prompts are not the first ones of more.
        "prompts": settings.answer_prompts,
        "longest": settings.answer_tokens,
        "pasta": model_fingerprint(weights.parallel),
        "draft_acceptance": settings.draft_acceptance,
        "each_help": settings.each_help,
    }
    part = comparison.part("answers", identity, range(settings.answer_prompts), "prompts")
    if not part.missing:
        return part.records
    tasks = heldout_prompts(settings.answer_prompts)
    with comparison.decoders(comparison.narrow, drafts=True) as chosen, contextlib.ExitStack() as stack:
        engines: dict[str, tuple[Chosen, dict[str, Engine]]] = {}
        for name, each in chosen.items():
            if isinstance(each.decoder, Ours):
                dtype = name.removeprefix("ours ")
                models = {
                    "twin": each.decoder.loaded,
                    "PASTA": load_model(weights.parallel.absolute(), dtype=dtype, device="cpu"),
                }
                engines[name] = (
                    each,
                    {
                        _name(f"{name}, {model}", way): Engine(loaded, config)
                        for model, loaded in models.items()
                        for way, config in (WAYS if model == "PASTA" else SEQUENTIAL_WAYS).items()
                        if settings.each_help or way in (NO_HELP, ALL_HELP)
                    },
                )
        stack.callback(engines.clear)
        _measure(tasks[0], settings.answer_tokens, chosen, engines)
        for number in part.missing:
            part.add(number, _measure(tasks[number], settings.answer_tokens, chosen, engines))
    return part.records


def _name(answered: str, way: str) -> str:
    return answered if way == NO_HELP else f"{answered}, {way}"


def _measure(
    task: AtlasTask,
    longest: int,
    chosen: dict[str, Chosen],
    engines: dict[str, tuple[Chosen, dict[str, Engine]]],
) -> Record:
    seconds: dict[str, float] = {}
    steps: dict[str, int] = {}
    tokens: dict[str, int] = {}
    count, cut = 0, False
    for each, own in engines.values():
        each.use()
        for name, engine in own.items():
            request = Request(
                engine.codec.encode_prompt(task.messages),
                limits=Limits(max_tokens=longest),
                parallel=", PASTA" in name,
            )
            begun = time.perf_counter()
            result = engine.generate(request)
            seconds[name] = time.perf_counter() - begun
            steps[name], tokens[name] = result.steps, result.num_tokens
            cut |= result.finish_reason != "stop"
            if not count:  # the twin of the widest format comes first
                count, prompt = result.num_tokens, request.prompt_ids
    for name, each in chosen.items():
        if name not in engines:
            timing = each.use().decode(prompt, count)
            seconds[name] = timing.first_s + timing.seconds
            steps[name], tokens[name] = timing.steps + 1, count
    return {"independent": task.independent, "cut": cut, "seconds": seconds, "steps": steps, "tokens": tokens}


def answers_report(shape: str, records: Sequence[Record]) -> Found:
    """How much faster an answer is there, by prompt, where none is cut: the full time of such a one is unknown. The
    table has all decoders and all answers."""
    names = list(records[0]["seconds"])
    rates = {name: [record["tokens"][name] / record["seconds"][name] for record in records] for name in names}
    whole = [record for record in records if not record["cut"]]
    independent = [record for record in whole if record["independent"]]
    metrics = []
    if cut := len(records) - len(whole):
        label = f"prompts without a ratio: an answer was cut at the length limit, {shape}"
        metrics.append(Metric(f"peers.answers.{shape}.cut", label, cut))
    for ours in [name.removesuffix(", twin") for name in names if name.endswith(", twin")]:
        twin, pasta = f"{ours}, twin", f"{ours}, PASTA"
        helped = f"{pasta}{_HELPED}"
        ratios: list[tuple[str, str, str, Sequence[Record], float | None]] = [
            ("twin", f"{twin}{_HELPED}", twin, whole, 1.6),
            ("threads", pasta, twin, independent, None),
            ("plain", helped, twin, whole, 2.8),
            ("plain_independent", helped, twin, independent, 3.6),
            ("same_independent", helped, f"{twin}{_HELPED}", independent, 2.2),
        ]
        for key, base in (("twin", twin), ("pasta", pasta)):
            for way in WAYS:
                alone = _name(base, way)
                if way not in (NO_HELP, ALL_HELP) and alone in rates:
                    ratios.append((f"{key}_{way}", alone, base, whole, None))
        if peer := peer_of(ours, rates):
            ratios.append(("llama", helped, peer, whole, None))
            ratios.append(("llama_independent", helped, peer, independent, None))
        if peer := peer_of(ours, rates, drafts=True):
            ratios.append(("llama_drafts_twin", f"{twin}{_HELPED}", peer, whole, None))
            ratios.append(("llama_drafts", helped, peer, whole, None))
            ratios.append(("llama_drafts_independent", helped, peer, independent, None))
        for key, fast, base, chosen, wanted in ratios:
            if chosen:
                found = bootstrap([record["seconds"][base] / record["seconds"][fast] for record in chosen])
                label = ", prompts with independent parts" if chosen is independent else ""
                metrics.append(
                    Metric.of(
                        f"peers.answers.{shape}.{ours.removeprefix('ours ')}.{key}",
                        f"an answer, {fast} ÷ {base}{label}, {shape}",
                        found,
                        target=wanted,
                    )
                )
    rows: list[Any] = []
    for name in names:
        spent, made, taken = (
            sum(record[what][name] for record in records) for what in ("seconds", "tokens", "steps")
        )
        rows.append(
            [
                name,
                f"{spent / len(records):.3f}",
                f"{made / len(records):.0f}",
                f"{made / taken:.2f}",
                f"{1e3 * spent / taken:.2f}",
                f"{made / spent:.1f}",
            ]
        )
    header = ["decoder", "seconds an answer", "tokens", "tokens a step", "ms a step", "tokens a second"]
    return metrics, {f"Answers to {len(records)} held-out prompts, {shape}": markdown(header, rows)}
