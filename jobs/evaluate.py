"""Measure methods against the sequential twin, speed and quality, and write a report:

    python -m jobs.evaluate --config configs/evaluate/atlas.yaml

Every prompt is answered by every method in turn, on one Ray worker; then a judge rates the answers; then figures and a
report follow from the records. The same command again goes on at the prompt where the last one stopped. Single keys are
set with ``--set prompts.count=50``; ``--restart`` measures anew; ``--report-only`` writes the report of what is there.
"""

import hashlib
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from jobs.arguments import job_parser
from jobs.cluster import code_version, ray_cluster
from jobs.keys import judge_key, read_key
from jobs.pool import Work, run_shards
from pasta.config import load_config, to_dict
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.evaluation.config import EvaluateConfig
from pasta.evaluation.judging import judge_answers
from pasta.evaluation.progress import DecodeProgress, VerdictProgress
from pasta.evaluation.prompts import EvalPrompt, read_eval_prompts, source_paths
from pasta.evaluation.results.evaluations import ANSWERS, VERDICTS, read_evaluation
from pasta.evaluation.results.summary import Summary, summarise
from pasta.judges.config import JudgeSection
from pasta.judges.make import check_judge, make_judge
from pasta.rows import read_json
from pasta.stages.records import Record, RecordFile, write_json
from pasta.stages.shards import cut
from pasta.stages.stage import StageOutput, read_manifest
from pasta.tracking import Tracker, start_tracker

CONFIG = EvaluateConfig
STAGE = "evaluate"
#: The machine of each worker that decoded, as it was when it began: a JSON array.
MACHINES = "machines.json"
#: Prompts that are judged together: an endpoint is asked about all of them at once.
_JUDGED = 16


def parser() -> ArgumentParser:
    """The command line."""
    made = job_parser(
        "evaluate", __doc__, "configs/evaluate/atlas.yaml", "measure from the start, whatever was done"
    )
    made.add_argument(
        "--report-only", action="store_true", help="write the report of the records that are there"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    config = load_config(options.config, EvaluateConfig, options.overrides)
    if options.report_only:
        if options.restart:
            raise UserError("--report-only: expected without --restart, which forgets the records")
        return report_only(config)
    return run(config, restart=options.restart, address=options.address)


def stage(config: EvaluateConfig, *, restart: bool = False) -> StageOutput:
    """The stage on disk. Raises UserError for methods, prompts and a judge that cannot be used."""
    return _stage(config, read_eval_prompts(config.prompts), restart)


def run(config: EvaluateConfig, *, restart: bool = False, address: str | None = None) -> int:
    """Decode, judge and report; leaves records, figures and a manifest in ``config.output_dir``."""
    prompts = read_eval_prompts(config.prompts)
    output = _stage(config, prompts, restart)
    if output.is_done:
        print(
            f"{config.name}: nothing to do: {config.output_dir} has this configuration (--restart measures again, "
            "--report-only writes its report again)"
        )
        return 0
    from pasta.evaluation.report import log_report

    keys = _keys(config)
    api_key = judge_key(config.judge)
    work_dir = output.start()
    answers = RecordFile(work_dir / ANSWERS, output.config)
    verdicts = RecordFile(work_dir / VERDICTS, output.config)
    run_dir = config.run_dir.absolute() / f"{config.name}-{output.identity[:8]}"
    tracker = start_tracker(
        config.tracking, run_dir=run_dir, name=config.name, job=STAGE, config=to_dict(config)
    )
    figures: dict[str, Any] = {}
    try:
        with _cluster(config, answers, verdicts, len(prompts), address):
            _decode(config, prompts, answers, keys, tracker)
            if config.judge is not None:
                figures |= _judge(config, config.judge, answers, verdicts, api_key)
        summary, paths = _report(config, work_dir)
        log_report(tracker, summary, paths)
        output.finish(figures | _headline(summary), code_version())
    except KeyboardInterrupt:
        print(
            f"{config.name}: the same command goes on at the prompt where this one stopped", file=sys.stderr
        )
        raise
    finally:
        tracker.finish()
    print(f"{config.name}: evaluation written to {config.output_dir}")
    return 0


def report_only(config: EvaluateConfig) -> int:
    """Write figures and report anew from the records of a finished or an unfinished evaluation."""
    directory = _records_of(config)
    records = read_evaluation(directory).answers
    _report(config, directory)
    total = len(read_eval_prompts(config.prompts))
    part = "" if len(records) == total else f" of the {len(records)} of {total} prompts that are decoded"
    print(f"{config.name}: report{part} written to {directory}")
    return 0


def _stage(config: EvaluateConfig, prompts: Sequence[EvalPrompt], restart: bool) -> StageOutput:
    from pasta.evaluation.methods.make import check_methods

    check_methods(config)
    _check_judge(config.judge, prompts)
    ids = " ".join(entry.id for entry in prompts)
    values = {
        "prompts": to_dict(config.prompts),
        "prompt_ids": hashlib.sha256(ids.encode()).hexdigest()[:16],
        **_measured(config),
        "judge": config.judge.identity() if config.judge else None,
        "repeats": config.repeats,
        "limits": to_dict(config.limits),
        "engine": to_dict(config.engine),
    }
    if config.repeats:
        values["threads"] = config.workers.threads  # what times depend on, and answers do not
    models: dict[str, str | None] = {
        f"methods.{name}.model": section.model for name, section in config.methods.items()
    }
    if config.judge is not None and config.judge.reward is not None:
        models["judge.reward.model"] = config.judge.reward.model
    # A directory is read; a Hub name stands for itself.
    inputs = {
        key: str(Path(name).absolute()) if Path(name).is_dir() else name
        for key, name in models.items()
        if name is not None
    }
    place = config.output_dir.absolute()
    return StageOutput(place, STAGE, values, inputs | source_paths(config.prompts), restart=restart)


def _measured(config: EvaluateConfig) -> dict[str, Any]:
    """What is compared with what."""
    methods = {name: section.identity() for name, section in config.methods.items()}
    return {"baseline": config.baseline, "methods": methods}


def _check_judge(judge: JudgeSection | None, prompts: Sequence[EvalPrompt]) -> None:
    if judge is None:
        return
    check_judge(judge)
    for entry in prompts:
        if judge.kind == "grader" and entry.family is None:
            shown = entry.prompt.messages[-1]["content"][:60]
            raise UserError(
                f"judge.kind: grader: {shown!r} is no atlas prompt; use teacher or reward for other prompts"
            )


def _keys(config: EvaluateConfig) -> dict[str, str | None]:
    return {
        name: read_key(section.endpoint, f"methods.{name}.endpoint")
        for name, section in config.methods.items()
        if section.endpoint is not None
    }


def _cluster(
    config: EvaluateConfig, answers: RecordFile, verdicts: RecordFile, total: int, address: str | None
) -> AbstractContextManager[object]:
    """One cluster for all models, unless their work is done."""
    has_reward = config.judge is not None and config.judge.reward is not None
    if len(answers) == total and not (has_reward and len(verdicts) < total):
        return nullcontext()
    workers = config.workers
    return ray_cluster(address, workers.num_workers, workers.threads, dashboard=False)


def _decode(
    config: EvaluateConfig,
    prompts: Sequence[EvalPrompt],
    answers: RecordFile,
    keys: dict[str, str | None],
    tracker: Tracker,
) -> None:
    """Answer what is not answered yet, a prompt at a time."""
    found = [*answers.records.values()]
    progress = DecodeProgress(config.name, len(prompts), config.baseline, found, config.repeats, tracker)
    left = {number: entry for number, entry in enumerate(prompts) if entry.id not in answers}
    directory = answers.path.parent
    machines = _machines(directory) if found else []

    def finished(number: int, result: tuple[Record, dict[str, Any]]) -> None:
        record, machine = result
        if machine not in machines:
            machines.append(machine)
            write_json(directory / MACHINES, machines)
        progress.add(answers.add(left[number].id, record))

    run_shards(partial(_make_decoder, config, keys), left, finished, config.workers)


def _make_decoder(config: EvaluateConfig, keys: dict[str, str | None]) -> Work:
    """On a worker: the models, loaded once; then a prompt's record, and the machine as it was at the start."""
    from pasta.benchmark.machine import describe_machine
    from pasta.engine.loading import resolve_device
    from pasta.evaluation.methods.decode import decode_prompt
    from pasta.evaluation.methods.make import make_methods

    methods = make_methods(config, keys)
    machine = describe_machine(resolve_device(config.engine.device))
    return lambda entry: (decode_prompt(methods, entry, config.repeats), machine)


def _judge(
    config: EvaluateConfig,
    judge: JudgeSection,
    answers: RecordFile,
    verdicts: RecordFile,
    key: str | None,
) -> dict[str, float]:
    """Rate what is not rated yet; returns figures of what that took."""
    progress = VerdictProgress(config.name, len(answers), [*verdicts.records.values()])
    left = cut([record for key, record in answers.records.items() if key not in verdicts], _JUDGED)

    def finished(number: int, result: tuple[list[Record], dict[str, float]]) -> None:
        records, usage = result
        for record in records:
            verdicts.add(record["key"], {"verdicts": record["verdicts"]})
        progress.add(records, usage)

    make = partial(_make_judge, judge, verdicts.path.parent, key, config.baseline)
    if judge.reward is not None:
        run_shards(make, left, finished, replace(config.workers, num_workers=1))
    elif left:
        # Neither grading nor asking an endpoint computes much.
        work = make()
        for number, records in left.items():
            finished(number, work(records))
    return progress.figures()


def _make_judge(judge: JudgeSection, work_dir: Path, key: str | None, baseline: str) -> Work:
    """The judge, made once; then some prompts' verdicts, and what they took."""
    made = make_judge(judge, work_dir, key)
    before: dict[str, float] = {}

    def work(records: list[Record]) -> tuple[list[Record], dict[str, float]]:
        judged = judge_answers(made, records, baseline=baseline, pairwise=judge.kind != "grader")
        usage = made.usage()
        spent = {name: value - before.get(name, 0.0) for name, value in usage.items()}
        before.update(usage)
        return judged, spent

    return work


def _report(config: EvaluateConfig, directory: Path) -> tuple[Summary, list[Path]]:
    """Figures and report of the records in ``directory``, written there."""
    from pasta.evaluation.report import write_report

    found = read_evaluation(directory)
    summary = summarise(found.answers, found.verdicts, baseline=config.baseline, methods=config.methods)
    paths = write_report(
        directory,
        summary,
        found.answers,
        found.verdicts,
        title=config.name,
        config=to_dict(config),
        machines=_machines(directory),
    )
    return summary, paths


def _machines(directory: Path) -> list[dict[str, Any]]:
    path = directory / MACHINES
    machines: list[dict[str, Any]] = read_json(path) if path.exists() else []
    return machines


def _headline(summary: Summary) -> dict[str, Any]:
    """The figures that a manifest shows: each method's speedups and quality."""
    figures: dict[str, Any] = {"prompts": summary.prompts}
    for name, method in summary.methods.items():
        for key in ("realised", "theoretical", "quality"):
            estimate = getattr(method, key)
            if estimate is not None:
                figures[f"{name}.{key}"] = estimate.value
    return figures


def _records_of(config: EvaluateConfig) -> Path:
    """The directory with this configuration's records. Raises UserError if there is none."""
    manifest = read_manifest(config.output_dir)
    if manifest is None:
        output = stage(config)
        if not (output.work_dir / ANSWERS).is_file():
            raise UserError(
                f"--report-only: {config.output_dir}: nothing is decoded with this configuration yet; run it first"
            )
        return output.work_dir
    made = {key: manifest.config.get(key) for key in _measured(config)}
    if manifest.stage != STAGE or made != _measured(config):
        raise UserError(
            f"--report-only: {config.output_dir}: holds stage {manifest.stage!r} with other methods; expected the "
            "configuration that it was made with"
        )
    return config.output_dir


if __name__ == "__main__":
    run_main(main)
