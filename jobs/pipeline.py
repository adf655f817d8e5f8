"""A whole recipe as one Ray job: annotate, fine-tune, then rounds of sample, score and prefer:

    python -m jobs.pipeline --config configs/pipelines/atlas.yaml

The same command again skips every stage whose configuration and inputs have not changed, goes on with the one that was
cut, and says which and why. ``--dry-run`` prints that plan and runs nothing. A changed stage gets a directory of its
own, and an evaluation that keeps answers of an earlier one takes its place, which sets that aside: no earlier output is
ever overwritten.
"""

import importlib
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

from jobs.arguments import job_parser
from jobs.cluster import check_address, check_engine
from jobs.endpoints import Questions, judge_key, method_keys, teacher_keys
from jobs.storage import relocated
from pasta.config import load_config
from pasta.data.atlas_keys import ATLAS
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.files import check_directory
from pasta.rows import Messages, placed, read_json
from pasta.signals import Terminated, ended_by_sigterm
from pasta.stages.lock import sole_writer
from pasta.stages.pipeline import Instance, PipelineConfig, instances
from pasta.stages.records import write_json
from pasta.stages.run import OnDisk, check_run_dir
from pasta.stages.stage import Manifest, output_of, read_manifest, unfinished_work

#: The file in a pipeline's directory that names the stages to be made again.
DUE = ".due.json"
#: Stands for the outputs of stages that have none yet.
UNKNOWN = "unknown"


class JobModule(Protocol):
    """What a job gives the pipeline: its configuration's class, its stage on disk, and a way to run it."""

    CONFIG: type[Any]

    def stage(self, config: Any, *, restart: bool = False) -> OnDisk: ...

    def run(self, config: Any, *, restart: bool = False, address: str | None = None) -> int: ...


@dataclass(frozen=True, slots=True)
class Step:
    """A stage whose inputs exist: the configuration it would run, and its state."""

    instance: Instance
    module: JobModule
    config: Any
    output: OnDisk
    restart: bool
    reason: str


@dataclass(slots=True)
class Position:
    """How far a pipeline has come, and the command that goes on there: what the user is told after Ctrl-C."""

    place: str
    command: str = "the same command"


def parser() -> ArgumentParser:
    """The command line."""
    made = job_parser("pipeline", __doc__, "configs/pipelines/atlas.yaml")
    instead = made.add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true", help="print the plan and run nothing")
    made.add_argument(
        "--restart", metavar="STAGE", help="make this stage again, and all stages that depend on it"
    )
    instead.add_argument(
        "--gpu-hours",
        type=Path,
        metavar="FILE",
        help="print what each stage would take by the roofline of a simulation such as "
        "configs/simulate/h100-gemma-7b.yaml, and run nothing",
    )
    made.set_defaults(check=_check_options)
    return made


def main() -> int:
    arguments = parser().parse_args()
    arguments.check(arguments)
    config, steps = read_recipe(arguments)
    stages = read_stages(config, steps)
    if arguments.gpu_hours is not None:
        from jobs.gpu_hours import gpu_hours_table  # the simulator

        print(gpu_hours_table(arguments.gpu_hours, steps, stages))
        return 0
    if arguments.dry_run:
        return show_plan(config, steps, arguments.restart)
    check_address(arguments.address)
    check_stage_directories(config, stages)
    check_engines(config, stages, arguments.address)
    check_prompts_and_keys(config, steps, stages)
    return run(config, steps, restart=arguments.restart, address=arguments.address)


def _check_options(arguments: Namespace) -> None:
    if arguments.gpu_hours is not None and arguments.restart is not None:
        raise UserError("--restart: has no effect with --gpu-hours, which runs nothing; expected one of them")


def read_recipe(arguments: Namespace) -> tuple[PipelineConfig, list[Instance]]:
    """The recipe that the command line names, and its stages in order."""
    config = load_config(arguments.config, PipelineConfig, arguments.overrides)
    if config.storage is not None:
        moved = relocated(config, config.storage)
        config = load_config(arguments.config, PipelineConfig, [*arguments.overrides, *moved])
    steps = list(instances(config, arguments.config))
    names = [instance.name for instance in steps]
    if arguments.restart is not None and arguments.restart not in names:
        raise UserError(f"--restart: {arguments.restart!r} is no stage; expected one of {', '.join(names)}")
    return config, steps


def read_stages(config: PipelineConfig, steps: list[Instance]) -> dict[str, Any]:
    """The configuration of every stage by name, with placeholders for the outputs of earlier stages: finds all mistakes
    at once. Raises UserError, naming the stage."""
    unknown = dict.fromkeys((instance.name for instance in steps), config.output_dir / UNKNOWN)
    stages = {}
    for instance in steps:
        # Several stages may share a file, or set the same key.
        with placed(instance.name):
            stages[instance.name] = _load(config, instance, unknown)[1]
    return stages


def check_stage_directories(config: PipelineConfig, stages: Mapping[str, Any]) -> None:
    """Raise UserError, naming the key, for a directory that cannot be made, or a place of checkpoints that cannot be
    written."""
    check_directory(config.output_dir, "output_dir")
    for name, stage in stages.items():
        with placed(name):
            check_run_dir(stage)
            if (url := getattr(stage, "checkpoints", None)) is not None:
                from pasta.training.storage import check_written  # fsspec

                check_written(url)


def check_engines(config: PipelineConfig, stages: Mapping[str, Any], address: str | None) -> None:
    """Raise UserError for a stage that has never been done, and whose engines cannot run here."""
    for name, stage in stages.items():
        engine = getattr(stage, "engine", None)
        if engine is None or not getattr(stage, "has_engines", True) or any(_finished(config, name)):
            continue
        with placed(name):
            check_engine(engine, getattr(stage, "rollout", stage).workers, address)


def check_prompts_and_keys(config: PipelineConfig, steps: list[Instance], stages: Mapping[str, Any]) -> None:
    """Raise UserError for a stage that has never been done, and whose file of prompts cannot be read, or whose judge,
    teacher or method has no key or refuses a trivial question, or whose judge cannot rate answers to its prompts: else
    it would be told after hours of other stages' work."""
    from jobs.annotate import AnnotateConfig
    from pasta.judges.make import check_asked

    asked: dict[str, list[Messages]] = {}
    questions = Questions("when this stage begins")
    for step in steps:
        name, stage = step.name, stages[step.name]
        if any(_finished(config, name)):
            continue
        with placed(name):
            judge, methods = getattr(stage, "judge", None), getattr(stage, "methods", {})
            teacher = stage.data.teacher if isinstance(stage, AnnotateConfig) else None
            key, keys, by_method = judge_key(judge), teacher_keys(teacher), method_keys(methods)
            asked[name] = _own_prompts(config, stage)
            if judge is not None:
                # Scores are of the prompts of their samples.
                check_asked(judge, asked[name] or asked.get(step.reads.get("samples", ""), []))
            questions.judge(judge, key, name)
            questions.teacher(teacher, keys, name)
            questions.methods(methods, by_method, name)


def _own_prompts(config: PipelineConfig, stage: Any) -> list[Messages]:
    """The prompts of a stage, empty if it has none, or if they are the atlas' or another stage will make them."""
    from pasta.evaluation.config import EvaluateConfig
    from pasta.evaluation.prompts import read_eval_prompts, read_prompts

    prompts = getattr(stage, "prompts", None)
    if prompts is None or prompts.source == ATLAS:
        return []
    if Path(prompts.source).is_relative_to(config.output_dir / UNKNOWN):
        return []
    if isinstance(stage, EvaluateConfig):
        return [each.prompt.messages for each in read_eval_prompts(prompts)]
    return [each.messages for each in read_prompts(prompts)]


def show_plan(config: PipelineConfig, steps: list[Instance], restart: str | None = None) -> int:
    """Print for every stage whether it would run, and why."""
    outputs: dict[str, Path] = {}
    due = _due(config)
    for instance in steps:
        waits = [name for name in instance.reads.values() if name not in outputs]
        if waits:
            print(f"{instance.name}: to run, after {', '.join(sorted(set(waits)))}")
            continue
        step = _step(config, instance, outputs, restart=instance.name == restart, due=instance.name in due)
        if step.output.is_done:
            outputs[instance.name] = step.output.output_dir
        print(f"{instance.name}: {step.reason}")
    return 0


def run(
    config: PipelineConfig, steps: list[Instance], *, restart: str | None = None, address: str | None = None
) -> int:
    """Run what is not done. After Ctrl-C, or SIGTERM, at any moment, tell the user where the pipeline was cut and how
    it goes on. Raises UserError if another pipeline runs in ``config.output_dir``."""
    outputs: dict[str, Path] = {}
    made: set[str] = set()
    position = Position(f"before {steps[0].name}")
    with _cut_at(config.name, position), locked(config.output_dir):
        due = _due(config)
        started = time.monotonic()
        for number, instance in enumerate(steps, start=1):
            # A stage that is made again has the identity that it had: what reads it would seem unchanged.
            again = instance.name == restart or not made.isdisjoint(instance.reads.values())
            step = _step(config, instance, outputs, restart=again, due=instance.name in due)
            outputs[instance.name] = step.output.output_dir
            # One that is due and has no output was cut when it was made again, and goes on.
            if not step.output.is_done and (step.restart or instance.name in due):
                made.add(instance.name)
                due |= {instance.name} | {each.name for each in steps if instance.name in each.reads.values()}
                write_json(config.output_dir / DUE, sorted(due))
                if instance.name == restart:  # until it is on disk, only --restart says so
                    position.command = "the same command without --restart"
            # Before the line: a user who reads it and presses Ctrl-C is told of this stage.
            position.place = f"{'after' if step.output.is_done else 'in'} {instance.name}"
            print(f"{config.name} {number}/{len(steps)} {instance.name}: {step.reason}", flush=True)
            if step.output.is_done:
                continue
            _run(step, config, address)
            if instance.name in due:
                due.remove(instance.name)
                write_json(config.output_dir / DUE, sorted(due))
            position.place = f"after {instance.name}"
            minutes = (time.monotonic() - started) / 60
            print(
                f"{config.name} {number}/{len(steps)} {instance.name}: done, {minutes:.1f} min so far",
                flush=True,
            )
    print(f"{config.name}: all {len(steps)} stages done; outputs in {config.output_dir}")
    return 0


@contextmanager
def _cut_at(name: str, position: Position) -> Iterator[None]:
    """Tell the user after Ctrl-C, or SIGTERM, where the pipeline is by then; the KeyboardInterrupt, or Terminated,
    passes through."""
    try:
        with ended_by_sigterm():
            yield
    except (KeyboardInterrupt, Terminated):
        print(f"{name}: cut {position.place}; {position.command} goes on there", file=sys.stderr)
        raise


def _run(step: Step, config: PipelineConfig, address: str | None) -> None:
    code = step.module.run(step.config, restart=step.restart, address=address)
    if code or read_manifest(step.output.output_dir) is None:
        raise UserError(f"{config.name}: {step.instance.name} ended without an output (exit code {code})")


def _step(
    config: PipelineConfig,
    instance: Instance,
    outputs: dict[str, Path],
    *,
    restart: bool = False,
    due: bool = False,
) -> Step:
    """The stage with its directory: where it was made before, else one named after the identity that follows from
    configuration and inputs.

    One that is ``due`` restarts if its earlier output is still there; else that restart was cut, and goes on.
    """
    module, loaded = _load(config, instance, outputs)
    place = _place(config, instance.name, module.stage(loaded))
    loaded = replace(loaded, output_dir=place)
    restart = restart or (due and read_manifest(place) is not None)
    output = module.stage(loaded, restart=restart)
    is_again = restart and read_manifest(place) is not None
    reason = "to run again" if is_again else _reason(config, output, instance.name)
    return Step(instance, module, loaded, output, restart, reason)


def _place(config: PipelineConfig, name: str, stage: OnDisk) -> Path:
    """The directory of the stage's output: where it is, where there is one that it reuses, finished or begun, or a new
    one."""
    finished = sorted(_finished(config, name), key=lambda each: each[1].finished, reverse=True)
    for place, manifest in finished:
        if stage.made(manifest):
            return place
    own = config.output_dir / f"{name}-{stage.identity[:8]}"
    # What was begun of this very stage goes first.
    begun = sorted(
        unfinished_work(config.output_dir, f"{name}-????????"),
        key=lambda left: stage.identity not in left.name,
    )
    left = [*((place, place) for place, _ in finished), *((output_of(work), work) for work in begun)]
    return next((place for place, work in left if stage.reuses(work)), own)


def _load(config: PipelineConfig, instance: Instance, outputs: dict[str, Path]) -> tuple[JobModule, Any]:
    module = cast(JobModule, importlib.import_module(f"jobs.{instance.section.job}"))
    overrides = [
        *instance.overrides(outputs),
        # A path that never exists: only the identity is needed before the real path is known.
        # JSON, as in ``Instance.overrides``: a name may look like a number, and hold a colon.
        f"output_dir={json.dumps(str(config.output_dir / f'.{instance.name}.unplaced'))}",
        f"name={json.dumps(instance.name)}",
        f"tracking.mode={config.tracking}",
        f"tracking.group={json.dumps(config.name)}",
    ]
    loaded = load_config(instance.section.config, module.CONFIG, overrides)
    if config.storage is not None:
        moved = relocated(loaded, config.storage)
        loaded = load_config(instance.section.config, module.CONFIG, [*overrides, *moved])
    return module, loaded


def _due(config: PipelineConfig) -> set[str]:
    """The stages that a restart has to make again and has not made yet: pipelines that were cut leave some."""
    path = config.output_dir / DUE
    return set(read_json(path)) if path.is_file() else set()


def _finished(config: PipelineConfig, name: str) -> Iterator[tuple[Path, Manifest]]:
    """Finished outputs of this stage in ``config.output_dir``, from whatever inputs they were made."""
    for directory in config.output_dir.glob(f"{name}-????????"):
        if (manifest := read_manifest(directory)) is not None:
            yield directory, manifest


def _reason(config: PipelineConfig, output: OnDisk, name: str) -> str:
    if output.is_done:
        newer = output.newer_inputs(output.output_dir)
        return f"unchanged, in {output.output_dir}" + "".join(
            f"; {each} was made again since" for each in newer
        )
    if output.is_resumed:
        return "to run, from where it was cut"
    manifests = (manifest for _, manifest in _finished(config, name))
    latest = max(manifests, key=lambda manifest: manifest.finished, default=None)
    if latest is None:
        return "to run, not done yet"
    if output.made(latest):
        return "to run: a part of the last one is gone"
    return f"to run: the last one had {output.difference(latest)}"


def locked(directory: Path) -> AbstractContextManager[None]:
    """Keep ``directory`` to this process for the time of a block. Raises UserError if another one has it."""
    directory.mkdir(parents=True, exist_ok=True)
    return sole_writer(directory, busy="another pipeline is running there")


if __name__ == "__main__":
    run_main(main)
