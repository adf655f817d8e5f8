"""How many GPU hours a recipe takes: an estimate from the recipe's own files and a simulation's roofline.

``python -m jobs.pipeline --config configs/pipelines/gemma-7b.yaml --gpu-hours configs/simulate/h100-gemma-7b.yaml``
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pasta.cli.simulate import read_workload, teller
from pasta.config import load_config
from pasta.errors import UserError
from pasta.files import annotated_files, read_lines
from pasta.markdown import markdown
from pasta.rows import numbered
from pasta.simulation.config import SimulateConfig
from pasta.simulation.load import LoadSection
from pasta.simulation.roofline import RooflineSection
from pasta.simulation.study import Series, Study
from pasta.stages.pipeline import Instance
from pasta.training.run import zero_stage

#: Of a training step, in forwards: the forward itself, the gradients of activations, those of weights.
_FORWARD, _ACTIVATIONS, _WEIGHTS = 1.0, 1.0, 1.0


class Unknown(Exception):
    """Why a stage has no price, in a user's words: what its files do not say, or the simulation has no room for."""


@dataclass(frozen=True, slots=True)
class StageHours:
    """A stage: what it does, and GPU hours on all of its GPUs together, None where its files do not say enough."""

    name: str
    work: str
    hours: float | None
    gpus: int


class GpuHours:
    """Prices the stages of a recipe.

    ``RooflineSection.training_s`` prices training. The simulator prices answers: as many requests at once as an engine
    has slots where they are sampled, one in an evaluation. Lengths are those of the simulation's trace. All parallel
    methods' answers cost what PASTA's do, and held-out ones what those cost that are trained on. Teachers and judges
    behind an endpoint cost nothing here. Raises ``UserError`` without a roofline.
    """

    def __init__(self, config: SimulateConfig, say: Callable[[str, bool], None]) -> None:
        if config.costs.roofline is None:
            raise UserError("--gpu-hours: costs.file measures no training; expected costs.roofline")
        self._roofline: RooflineSection = config.costs.roofline
        self._config = replace(config, sweep=None, sizing=None)
        self._trace = read_workload(config, say)
        self._rates: dict[tuple[bool, int, int], float] = {}
        both = self._trace.scripts
        prompt = fmean(each.parallel.prompt_tokens for each in both)
        #: Mean tokens of a training row, by whether it has threads.
        self.row_tokens = {
            False: prompt + fmean(each.sequential.num_tokens for each in both),
            True: prompt + fmean(each.parallel.num_tokens for each in both),
        }

    def of(self, steps: Sequence[Instance], stages: Mapping[str, Any]) -> list[StageHours]:
        """Price every stage, given its configuration by name."""
        by_name = {each.name: each for each in steps}
        return [self._stage(_Source(each, by_name, stages)) for each in steps]

    def _stage(self, source: "_Source") -> StageHours:
        name, job, config = source.instance.name, source.instance.section.job, source.config
        price = {
            "sft": self._sft,
            "preference": self._preference,
            "rl": self._rl,
            "sample": self._sample,
            "evaluate": self._evaluate,
        }.get(job)
        judge = getattr(config, "judge", None)
        is_judged_here = judge is not None and judge.reward is not None
        if price is None and is_judged_here:
            return StageHours(name, "not estimated: what judge.reward.model takes", None, 0)
        if price is None:
            return StageHours(name, "no model of ours", 0.0, 0)
        try:
            work, seconds = price(config, source)
        except Unknown as unknown:
            return StageHours(name, f"not estimated: {unknown}", None, 0)
        without = "; without judge.reward.model" if is_judged_here else ""
        return StageHours(name, work + without, seconds / 3600, _gpus(config))

    def _sft(self, config: Any, source: "_Source") -> tuple[str, float]:
        recipe, data = config.optimisation, config.data
        forwards = _FORWARD if config.draft_heads is not None else _training(config)
        if recipe.max_steps is not None:
            passes = float(recipe.max_steps * recipe.accumulate * config.workers.num_workers)
            what = f"{recipe.max_steps:,} steps of {recipe.rows} rows of {data.row_length} tokens a worker"
            a_pass = self._pass_s(config, recipe.rows * data.row_length, forwards)
            return f"trains for {what}", passes * a_pass
        answers = _at_most(data.documents, source.records)
        lengths = {"sequential": [False], "pasta": [True], "both": [False, True]}[data.mode]
        tokens = answers * recipe.epochs * sum(self.row_tokens[threads] for threads in lengths)
        what = f"{answers:,} answers, {recipe.epochs:g} epochs"
        # A row of several answers is full; an answer that is longer has a row of its own.
        row = max(data.row_length, self.row_tokens[data.mode != "sequential"])
        return f"trains on {what}", self._trained_s(config, tokens, row, forwards)

    def _preference(self, config: Any, source: "_Source") -> tuple[str, float]:
        recipe, pairs = config.optimisation, _at_most(config.data.pairs, source.pairs)
        if recipe.max_steps is not None:
            seen = float(recipe.max_steps * recipe.rows * recipe.accumulate * config.workers.num_workers)
            how_long = f"{recipe.max_steps:,} steps"
        else:
            seen, how_long = pairs * recipe.epochs, f"{recipe.epochs:g} epochs"
        row = 2 * self.row_tokens[True]
        references = pairs if config.objective.reference_log_probs == "precomputed" else seen
        seconds = self._trained_s(config, seen * row, row, _training(config))
        seconds += self._trained_s(config, references * row, row, _FORWARD, _gathered(config))
        return f"trains on {pairs:,} pairs at most, {how_long}", seconds

    def _rl(self, config: Any, source: "_Source") -> tuple[str, float]:
        recipe, answers = config.objective, float(config.num_batches * config.batch_answers)
        is_stale = bool(config.rollout.staleness)
        actors, trainers = config.rollout.workers.num_workers, config.workers.num_workers
        row = self.row_tokens[True]
        twin = self._decoded_s(config, config.prompts.count or source.records(), parallel=False)
        sampled = self._decoded_s(config, answers, parallel=True)
        if is_stale:  # an actor finds the log-probabilities of its answers too
            sampled += self._trained_s(config, answers * row, row, _FORWARD, moved=0.0)
        forwards = _training(config)
        if recipe.kl_weight:  # the reference
            forwards += _FORWARD
        if recipe.updates > 1:  # the policy as it was before the first of them
            forwards += _FORWARD
        trained = self._trained_s(config, answers * row, row, forwards)
        # Actors and trainers hold their GPUs all the time, though with staleness 0 only one kind works at once.
        both = (sampled / actors, trained / trainers)
        clock = twin / actors + (max(both) if is_stale else sum(both))
        return f"samples {answers:,.0f} answers and trains on them", clock * _gpus(config)

    def _sample(self, config: Any, source: "_Source") -> tuple[str, float]:
        prompts = config.prompts.count or source.records()
        answers = prompts * config.sampling.candidates
        sampled = self._decoded_s(config, answers, parallel=True)
        twins = self._decoded_s(config, prompts, parallel=False)
        return f"samples {answers:,} answers, and {prompts:,} of the twin", sampled + twins

    def _evaluate(self, config: Any, source: "_Source") -> tuple[str, float]:
        prompts = config.prompts.count or source.records()
        times = 1 + config.repeats
        decoded = [each for each in config.methods.values() if each.model is not None]
        seconds = sum(
            self._decoded_s(config, prompts * times, parallel=each.kind != "sequential", slots=1)
            for each in decoded
        )
        return f"{prompts:,} prompts by {len(decoded)} methods, {times} times each", seconds

    def _trained_s(
        self, config: Any, tokens: float, row: float, forwards: float, moved: float | None = None
    ) -> float:
        """GPU seconds of ``tokens`` in rows of ``row``; a pass moves all weights ``moved`` times, by default as often
        as one of training does."""
        a_pass = config.optimisation.rows * row
        return tokens / a_pass * self._pass_s(config, a_pass, forwards, moved)

    def _pass_s(self, config: Any, tokens: float, forwards: float, moved: float | None = None) -> float:
        moved = _moved(config) if moved is None else moved
        return self._roofline.training_s(tokens, self.row_tokens[True], forwards, moved)

    def _decoded_s(self, config: Any, answers: float, *, parallel: bool, slots: int | None = None) -> float:
        """GPU seconds of so many answers, ``slots`` at once on each engine (by default all that it has)."""
        rate = self._rate(parallel, slots or config.engine.num_slots, config.engine.slot_tokens)
        return answers * config.workers.processes / rate

    def _rate(self, parallel: bool, slots: int, slot_tokens: int) -> float:
        """Answers a second of one engine that always has work."""
        key = (parallel, slots, slot_tokens)
        if key not in self._rates:
            engine = replace(self._config.engine, num_slots=slots, slot_tokens=slot_tokens)
            load = LoadSection(kind="users", users=slots, think_s=0.0)
            try:
                config = replace(self._config, engine=engine, load=load)
            except ValueError as error:  # the simulation's device has no room for the recipe's slots
                raise Unknown(str(error)) from None
            study = Study(config, self._trace, self._roofline)
            metrics = study.point(Series("local" if parallel else None), load, 1).metrics
            if metrics.requests_s is None:
                raise Unknown(f"requests {config.requests}: too few for {slots} slots, none ends in time")
            self._rates[key] = metrics.requests_s
        return self._rates[key]


@dataclass(frozen=True, slots=True)
class _Source:
    """Follows what a stage reads through the stages before it."""

    instance: Instance
    by_name: Mapping[str, Instance]
    stages: Mapping[str, Any]

    @property
    def config(self) -> Any:
        """The stage's own."""
        return self.stages[self.instance.name]

    def records(self) -> int:
        """How many answers or prompts the data has that the stage reads. Raises ``Unknown``."""
        config = self.config
        section, key = (config.data, "data") if hasattr(config, "data") else (config.prompts, "prompts")
        name = self.instance.reads.get(f"{key}.source")
        if name is not None:
            read, job = self.stages[name], self.by_name[name].section.job
            if job == "sample":
                count = read.prompts.count
            elif job == "annotate":
                count = read.data.source.records
            else:
                count = None
        else:
            count = (_count_answers if key == "data" else _count_prompts)(Path(section.source))
        if count is None:
            raise Unknown(f"how much data {key}.source {section.source} has")
        return int(count)

    def pairs(self) -> int:
        """At most a pair for each prompt of the sample stage behind the pairs. Raises ``Unknown``."""
        scored = self.instance.reads.get("data.source")
        sampled = None if scored is None else self.by_name[scored].reads.get("samples")
        if sampled is None:
            raise Unknown("data.pairs is not set")
        prompts = self.stages[sampled].prompts.count
        if prompts is None:
            raise Unknown(f"prompts.count of {sampled} is not set")
        return int(prompts)


def _at_most(most: int | None, count: Callable[[], int]) -> int:
    """``most``, or what the data has where that is known to be less. Raises ``Unknown``."""
    try:
        return min(count(), most or sys.maxsize)
    except Unknown:
        if most is None:
            raise
        return most


def _count_answers(path: Path) -> int | None:
    """How many annotated answers a file, or the directory of an annotate stage, has; None if it is not there."""
    if not path.exists():
        return None
    return sum(1 for file in annotated_files(path) for _ in numbered(read_lines(file))) or None


def _count_prompts(path: Path) -> int | None:
    """How many prompts a file has; None if it is not there."""
    if not path.is_file():
        return None
    from pasta.data.prompts import PromptsSection
    from pasta.evaluation.prompts import read_prompts

    return len(read_prompts(PromptsSection(str(path))))


def _gpus(config: Any) -> int:
    """The GPUs that a stage holds."""
    actors = config.rollout.workers.num_workers if hasattr(config, "rollout") else 0
    return int(config.workers.num_workers * config.workers.processes) + actors


def _training(config: Any) -> float:
    """A training step's work in forwards: adapters need no gradients of weights, checkpointing computes twice."""
    again = _FORWARD if config.optimisation.gradient_checkpointing else 0.0
    return _FORWARD + _ACTIVATIONS + (0.0 if config.lora is not None else _WEIGHTS) + again


def _moved(config: Any) -> float:
    """How often a worker sends or receives all weights in a pass: gradients are reduced, and under ZeRO-3 weights are
    gathered for the forward and for the backward pass (Rajbhandari et al. 2020, arXiv 1910.02054, section 7)."""
    if config.workers.num_workers == 1:
        return 0.0
    gradients = 0.0 if config.lora is not None else 1.0
    if gathered := _gathered(config):
        return 2.0 * gathered + gradients
    # In reinforcement learning the size of a batch says how many forwards a step has.
    return 2.0 * gradients / getattr(config, "accumulate", config.optimisation.accumulate)


def _gathered(config: Any) -> float:
    """How often a worker receives all weights for a forward alone."""
    is_sharded = config.workers.num_workers > 1 and zero_stage(config.optimisation.deepspeed) == 3
    return 1.0 if is_sharded else 0.0


def gpu_hours_table(file: Path, steps: Sequence[Instance], stages: Mapping[str, Any]) -> str:
    """The table for a recipe's stages. Raises ``UserError`` for a simulation that cannot be read."""
    config = load_config(file, SimulateConfig, [])
    prices = GpuHours(config, teller())
    found = prices.of(steps, stages)
    rows: list[list[str]] = []
    for each in found:
        hours = "?" if each.hours is None else f"{each.hours:,.1f}"
        clock = f"{each.hours / each.gpus:,.1f} on {each.gpus}" if each.hours and each.gpus else ""
        rows.append([each.name, each.work, hours, clock])
    total = sum(each.hours or 0.0 for each in found)
    clock_total = sum(each.hours / each.gpus for each in found if each.hours and each.gpus)
    rows.append(["all", "", f"{total:,.1f}", f"{clock_total:,.1f}"])
    row = prices.row_tokens
    return (
        f"{config.name}: an estimate. A row has {row[False]:.0f} tokens, with threads {row[True]:.0f} "
        f"(trace.source {config.trace.source}).\n\n"
        + markdown(["stage", "what it does", "GPU hours", "hours by the clock, on GPUs"], rows)
    )
