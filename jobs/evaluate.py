"""Measure methods against the sequential twin, speed and quality, and write a report:

    python -m jobs.evaluate --config configs/evaluate/atlas.yaml

Every prompt is answered by every method in turn, on one Ray worker; then a judge rates the answers; then figures and a
report follow from the records. The same command again goes on at the prompt where the last one stopped; with another
judge it keeps the answers. Single keys are set with ``--set prompts.count=50``; ``--restart`` measures anew,
``--rejudge`` judges anew; ``--report-only`` writes the report of what is there.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.arguments import job_parser, parse_arguments
from jobs.cluster import check_engine, code_version, ray_cluster
from jobs.endpoints import Questions, judge_key, method_keys
from jobs.pool import Work, run_shards
from pasta.config import to_dict
from pasta.engine.head_files import WEIGHTS
from pasta.engine.section import EngineSection
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.evaluation.config import EvaluateConfig, MethodSection
from pasta.evaluation.judging import JUDGED, answer_judge, check_prompts
from pasta.evaluation.kept import EvaluationOutput
from pasta.evaluation.prompts import EvalPrompt, digest, read_eval_prompts
from pasta.evaluation.results.evaluations import ANSWERS, VERDICTS, read_evaluation
from pasta.evaluation.results.outcomes import RunningSpeedups
from pasta.evaluation.results.summary import Summary, summarise_evaluation
from pasta.interpreter import Limits
from pasta.judges.config import JudgeSection
from pasta.judges.tally import VerdictTally
from pasta.rows import by_dotted_key
from pasta.stages.machines import Machines, read_machines
from pasta.stages.progress import Progress
from pasta.stages.records import Record, RecordFile
from pasta.stages.run import nothing_to_do, stage_run
from pasta.stages.shards import split_into_shards
from pasta.stages.stage import Manifest, changed_key, model_inputs, read_manifest
from pasta.tracking import Tracker
from serve.imports import uncollected, without_torch

if TYPE_CHECKING:
    from pasta.engine.ranks import Ranks

CONFIG = EvaluateConfig
STAGE = "evaluate"
#: A prompt, and the methods that have to answer it.
Asked = tuple[EvalPrompt, Sequence[str]]


def parser() -> ArgumentParser:
    """The command line."""
    made = job_parser(
        "evaluate", __doc__, "configs/evaluate/atlas.yaml", "measure from the start, whatever was done"
    )
    made.add_argument("--rejudge", action="store_true", help="judge the answers that are there again")
    made.add_argument("--report-only", action="store_true", help="write the report from the existing records")
    made.set_defaults(check=_check_options)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    config, options = parse_arguments(parser(), EvaluateConfig, arguments)
    with uncollected():
        without_torch()  # the workers have the models
    if options.report_only:
        return report_only(config)
    if options.rejudge and config.judge is None:
        raise UserError("--rejudge: the configuration has no judge")
    return run(config, restart=options.restart, rejudge=options.rejudge, address=options.address)


def _check_options(options: Namespace) -> None:
    if options.report_only and (options.restart or options.rejudge):
        option = "--restart" if options.restart else "--rejudge"
        raise UserError(f"--report-only: expected without {option}, which forgets the records")
    if options.restart and options.rejudge:
        raise UserError("--rejudge: expected without --restart, which forgets the answers too")


def stage(config: EvaluateConfig, *, restart: bool = False) -> EvaluationOutput:
    """The stage on disk. Raises UserError for methods, prompts and a judge that cannot be used."""
    return _stage(config, read_eval_prompts(config.prompts), restart=restart)


def run(
    config: EvaluateConfig, *, restart: bool = False, rejudge: bool = False, address: str | None = None
) -> int:
    """Decode, judge and report; leaves records, figures and a manifest in ``config.output_dir``."""
    prompts = read_eval_prompts(config.prompts)
    output = _stage(config, prompts, restart=restart, rejudge=rejudge)
    again = "measures again, --rejudge judges again, --report-only writes its report again"
    if nothing_to_do(config.name, config.output_dir, output, again):
        return 0
    for gap in output.lost:
        print(f"{config.name}: {output.output_dir}: {gap}, and made again", flush=True)
    is_decoded = output.is_decoded(entry.prompt.id for entry in prompts)
    keys = {} if is_decoded else _method_keys(config, prompts, address)
    api_key = judge_key(config.judge)
    if not is_decoded:
        Questions("once the answers are decoded").judge(config.judge, api_key, config.name)
    option = "--rejudge" if rejudge else "--restart"
    with stage_run(config, output, resumes="at the prompt where this one stopped", option=option) as job:
        notes = {"inputs": output.fingerprints} | ({"restarted": True} if restart else {})
        answers = RecordFile(job.work_dir / ANSWERS, output.config, notes=notes)
        verdicts = RecordFile(job.work_dir / VERDICTS, output.config)
        if "restarted" not in answers.notes:  # a restart that was cut goes on without the option
            output.keep(config.name, answers, verdicts)
        usage: dict[str, float] = {}
        left = {
            number: (entry, missing)
            for number, entry in enumerate(prompts)
            if (missing := output.missing(answers.records.get(entry.prompt.id)))
        }
        if left and is_decoded:  # a restart that was cut before its first answer keeps nothing
            keys = _method_keys(config, prompts, address)
        with _cluster(config, bool(left), len(verdicts) < len(prompts), address):
            _decode(config, output, len(prompts), left, answers, keys, job.tracker, address)
            answers.compact()
            if config.judge is not None:
                usage = _judge(config, config.judge, answers, verdicts, output.replace, api_key, address)
        summary = _report(config, job.work_dir, job.tracker)
        job.finish("evaluation", usage | summary.headline(), code_version())
    return 0


def report_only(config: EvaluateConfig) -> int:
    """Write figures and report anew from the records of a finished or an unfinished evaluation."""
    directory = _records_of(config)
    found, part = read_evaluation(directory), ""
    # The source of a finished one may have changed since, or be gone.
    if not found.finished and len(found.answers) < (total := len(read_eval_prompts(config.prompts))):
        part = f" of the {len(found.answers)} of {total} prompts that are decoded"
    _report(config, directory, Tracker())
    print(f"{config.name}: report{part} written to {directory}")
    for gap in found.lacks(verdicts=True) if found.finished else ():
        print(f"{config.name}: {gap}; the report is of what is there")
    return 0


def _stage(
    config: EvaluateConfig, prompts: Sequence[EvalPrompt], *, restart: bool, rejudge: bool = False
) -> EvaluationOutput:
    from pasta.candidates.checks import check_shared
    from pasta.evaluation.methods.checks import check_methods

    check_methods(config.methods, config.baseline, config.engine.num_slots, config.workers.num_workers)
    models = (section.model for section in config.methods.values())
    check_shared(config.workers.tensor_parallel, models, config.engine)
    if config.judge is not None:
        check_prompts(config.judge, prompts)
    values = config.identity() | {"prompt_ids": digest(entry.prompt for entry in prompts)}
    inputs = model_inputs(config.models()) | _draft_heads(config) | config.prompts.inputs()
    place = config.output_dir.absolute()
    return EvaluationOutput(place, STAGE, values, inputs, restart=restart, rejudge=rejudge)


def _draft_heads(config: EvaluateConfig) -> dict[str, str | Path]:
    """The draft heads by which answers come sooner. A model that a stage has made is known by that stage, whatever has
    been put beside it since."""
    if not (config.repeats and config.engine.drafts and config.engine.draft_heads):
        return {}
    return {
        f"{key}/{WEIGHTS}": (Path(name) / WEIGHTS).absolute()
        for key, name in config.models().items()
        if name is not None and read_manifest(Path(name)) is not None and (Path(name) / WEIGHTS).is_file()
    }


def _method_keys(
    config: EvaluateConfig, prompts: Sequence[EvalPrompt], address: str | None
) -> dict[str, str | None]:
    """The keys of the methods' endpoints. Raises UserError for what decoding needs and this machine has not."""
    from pasta.candidates.checks import check_room

    models = [section.model for section in config.methods.values() if section.model is not None]
    if models:
        check_engine(config.engine, config.workers, address, models)
        check_room(models[0], [each.prompt for each in prompts], config.limits, config.engine.slot_tokens)
    return method_keys(config.methods)


def _cluster(
    config: EvaluateConfig, decodes: bool, judges: bool, address: str | None
) -> AbstractContextManager[object]:
    """One cluster for all models, unless none has work left. Grading, and asking an endpoint, need no model here."""
    has_reward = config.judge is not None and config.judge.reward is not None
    if not decodes and not (judges and has_reward):
        return nullcontext()
    workers = config.workers
    return ray_cluster(address, workers.num_workers * workers.processes, workers.threads)


def _decode(
    config: EvaluateConfig,
    output: EvaluationOutput,
    total: int,
    left: Mapping[int, Asked],
    answers: RecordFile,
    keys: Mapping[str, str | None],
    tracker: Tracker,
    address: str | None,
) -> None:
    """Answer what is ``left`` of ``total`` prompts, one at a time. With --restart the first answer replaces an earlier
    evaluation."""
    directory = answers.path.parent
    machines = Machines(config.name, directory, read_machines(directory) if len(answers) else [])
    speedups = RunningSpeedups(config.baseline, is_timed=config.repeats > 0)
    cut = {entry.prompt.id for entry, _ in left.values()}
    for key, record in answers.records.items():
        if key not in cut:
            speedups.count(record)
    found = total - len(left)
    progress = Progress(f"{config.name}, decoding", total, "prompts", found, tracker=tracker, job=STAGE)

    def finished(number: int, result: tuple[Record, dict[str, Any]]) -> None:
        record, machine = result
        output.replace()
        machines.add(machine)
        speedups.count(output.add(answers, left[number][0].prompt.id, record))
        means = {f"{STAGE}/running_speedup/{name}": mean for name, mean in speedups.means().items()}
        progress.add(1, speedups, means)

    asked = {name for _, names in left.values() for name in names}
    methods = {name: section for name, section in config.methods.items() if name in asked}
    sections = (methods, config.limits, config.engine)
    make = partial(_make_decoder, *sections, keys, config.repeats, config.workers.num_workers)
    run_shards(make, left, finished, config.workers, address)


def _make_decoder(
    methods: Mapping[str, MethodSection],
    limits: Limits,
    engine: EngineSection,
    keys: Mapping[str, str | None],
    repeats: int,
    num_workers: int,
    ranks: "Ranks | None" = None,
) -> Work:
    """On a worker: load the models once; then make a prompt's record. Also records the machine as it was at the start,
    and the number formats that the models have there."""
    from pasta.benchmark.machine import describe_machine
    from pasta.engine.supported import resolve_device
    from pasta.evaluation.methods.decode import decode_prompt
    from pasta.evaluation.methods.make import make_methods, number_formats

    made = make_methods(methods, limits, engine, keys, ranks, num_workers)
    machine = describe_machine(resolve_device(engine.device), number_formats(made))

    def work(asked: Asked) -> tuple[Record, dict[str, Any]]:
        entry, names = asked
        return decode_prompt({name: made[name] for name in names}, entry, repeats), machine

    return work


def _judge(
    config: EvaluateConfig,
    judge: JudgeSection,
    answers: RecordFile,
    verdicts: RecordFile,
    begin: Callable[[], None],
    key: str | None,
    address: str | None = None,
) -> dict[str, float]:
    """Rate the answers that are not rated yet, and call ``begin`` before verdicts are kept; returns figures of the
    judge's usage, by earlier runs too."""
    directory = verdicts.path.parent
    tally = VerdictTally(directory)
    for record in verdicts.records.values():
        tally.count(record["verdicts"].values())
    progress = Progress(f"{config.name}, judging", len(answers), "prompts", len(verdicts))
    left = split_into_shards(
        [record for key, record in answers.records.items() if key not in verdicts], JUDGED
    )

    def finished(number: int, result: tuple[list[Record], dict[str, float]]) -> None:
        records, usage = result
        begin()
        tally.spend(usage)
        for record in records:
            verdicts.add(record["key"], {"verdicts": record["verdicts"]})
            tally.count(record["verdicts"].values())
        progress.add(len(records), tally)

    make = partial(answer_judge, judge, directory, key, config.baseline)
    if judge.reward is not None:
        run_shards(make, left, finished, replace(config.workers, num_workers=1, tensor_parallel=1), address)
    elif left:
        # Neither grading nor asking an endpoint computes much.
        work = make()
        for number, records in left.items():
            finished(number, work(records))
    return tally.figures()


def _report(config: EvaluateConfig, directory: Path, tracker: Tracker) -> Summary:
    """Write and record figures and report of the records in ``directory``."""
    from pasta.evaluation.report.write import log_report, write_report

    found = read_evaluation(directory)
    summary = summarise_evaluation(
        found.answers, found.verdicts, baseline=config.baseline, methods=config.methods
    )
    paths = write_report(
        directory,
        summary,
        found.answers,
        found.verdicts,
        title=config.name,
        config=to_dict(config),
        machines=read_machines(directory),
    )
    log_report(tracker, summary, paths)
    return summary


def _records_of(config: EvaluateConfig) -> Path:
    """The directory with this configuration's records. Raises UserError if there is none."""
    manifest = read_manifest(config.output_dir)
    wrong = "nothing is decoded with this configuration yet; run it first"
    if manifest is not None and not (wrong := _other_configuration(config, manifest)):
        return config.output_dir
    # Its models or prompts may have been moved since. Beside a finished one with another judge there may be one that
    # goes on from its answers.
    with suppress(UserError) if manifest is not None else nullcontext():
        output = stage(config)
        if output.is_done or output.lost:
            return config.output_dir
        if (output.work_dir / ANSWERS).is_file():
            return output.work_dir
    raise UserError(f"--report-only: {config.output_dir}: {wrong}")


def _other_configuration(config: EvaluateConfig, manifest: Manifest) -> str:
    """What a finished stage was made with that is not in the configuration; empty if it is this evaluation."""
    made = {key: manifest.config.get(key) for key in config.measured()}
    expected = "expected the configuration that it was made with"
    if manifest.stage != STAGE or made != config.measured():
        return f"holds stage {manifest.stage!r} with other methods; {expected}"
    # The report shows the configuration. Keys that one of the two does not have are of other commits.
    ours, theirs = by_dotted_key(config.identity()), by_dotted_key(manifest.config)
    both = (key for key in ours.keys() | theirs.keys() if _says(ours, key) and _says(theirs, key))
    changed = changed_key(ours, theirs, both)
    return f"was made with {changed}; {expected}" if changed else ""


def _says(values: Mapping[str, Any], key: str) -> bool:
    """Whether a configuration has this dotted key, or one around it: a section that is null."""
    return any(around in values for around in accumulate(key.split("."), "{}.{}".format))


if __name__ == "__main__":
    run_main(main)
