"""Decodes held-out prompts with the shipped models, with each help of the engine switched on in turn.

Helps change no token, so what they are worth depends on real text: this part runs on the trained weights alone.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from pasta.benchmark.peers.comparison import Comparison
from pasta.benchmark.peers.decoders import ALL
from pasta.benchmark.peers.engine import known_helps, switched
from pasta.benchmark.peers.settings import FORMATS
from pasta.data.atlas import AtlasTask, heldout_prompts
from pasta.engine import Engine, EngineConfig, LoadedModel, Request, Result
from pasta.engine.loading import load_model
from pasta.interpreter import Limits
from pasta.stages.records import Record, RecordFile

_LONGEST_PROMPT = 1024


def measure_helps(comparison: Comparison) -> RecordFile:
    """One record a prompt: of each decoder the seconds, prompt included, tokens and steps, and whether a help has
    changed a token."""
    settings = comparison.settings
    tasks = heldout_prompts(settings.prompts)
    limits, dtype = Limits(max_tokens=settings.max_tokens), comparison.narrow[0]
    file = comparison.open(
        "helps", {"helps": known_helps(), "dtype": dtype, "max_tokens": settings.max_tokens}
    )
    missing = [number for number in range(len(tasks)) if str(number) not in file]
    progress = comparison.kept.progress(
        f"helps, {comparison.weights.name}", len(tasks), "prompts", len(tasks) - len(missing)
    )
    if not missing:
        return file
    twin, pasta = (
        load_model((settings.models / name).absolute(), dtype=dtype, device="cpu")
        for name in ("twin", "pasta")
    )
    engines = _engines(twin, pasta, settings.max_tokens)
    formats = [f for f in comparison.formats if FORMATS[f][0] <= FORMATS[dtype][0]]
    with comparison.decoders(formats) as chosen:
        llamas = {name: each for name, each in chosen.items() if each.decoder.side == "llama.cpp"}
        own = chosen[f"ours {dtype}"]
        _measure(tasks[missing[0]], engines, own, llamas, limits)
        for number in missing:
            file.add(str(number), _measure(tasks[number], engines, own, llamas, limits))
            progress.add()
    return file


def _engines(twin: LoadedModel, pasta: LoadedModel, max_tokens: int) -> dict[str, tuple[Engine, bool]]:
    """By name: an engine, and whether it decodes in parallel."""
    sets: dict[str, Sequence[str]] = {"": (), **{f" with {name}": (name,) for name in known_helps()}}
    if len(sets) > 2:
        sets[f" with {ALL}"] = known_helps()
    out = {}
    for label, on in sets.items():
        for model, loaded in (("twin", twin), ("PASTA", pasta)):
            config = dataclasses.replace(
                EngineConfig(num_slots=1, slot_tokens=max_tokens + _LONGEST_PROMPT), **switched(on)
            )
            out[f"{model}{label}"] = (Engine(loaded, config), model == "PASTA")
    return out


def _measure(
    task: AtlasTask, engines: dict[str, tuple[Engine, bool]], own: Any, llamas: Any, limits: Limits
) -> Record:
    record: Record = {"independent": task.independent}
    plain: dict[bool, Result] = {}
    own.use()
    for name, (engine, parallel) in engines.items():
        prompt = engine.codec.encode_prompt(task.messages)
        begun = time.perf_counter()
        result = engine.generate(Request(prompt_ids=prompt, limits=limits, parallel=parallel))
        seconds = time.perf_counter() - begun
        first = plain.setdefault(parallel, result)
        record[name] = {
            "seconds": seconds,
            "tokens": result.num_tokens,
            "steps": result.steps,
            "same": result.response_ids == first.response_ids,
        }
    count = max(plain[False].num_tokens, 2)
    for name, each in llamas.items():
        timing = each.use().decode(prompt, count)
        record[name] = {"seconds": timing.first_s + timing.seconds, "tokens": count}
    return record
