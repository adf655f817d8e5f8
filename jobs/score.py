"""Score sampled candidates and pair the best with the worst of each prompt:

    python -m jobs.score --config configs/score/atlas.yaml

First a judge rates every candidate (an actor pool; verdicts are kept, whatever becomes of the run), then scores and
pairs are written. The same command again goes on where it stopped; another ``quality_weight`` uses the same verdicts.
Single keys are set with ``--set quality_weight=inf``; ``--restart`` scores anew, from the verdicts that are there;
``--rejudge`` forgets them too.
"""

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from jobs.arguments import job_parser, parse_arguments
from jobs.cluster import code_version
from jobs.endpoints import judge_key
from jobs.pool import Work, run_shards
from pasta.candidates.sample_report import sample_shards
from pasta.candidates.scoring import PAIRS_FILE, ScoreConfig, counts_line, no_pairs, write_scores
from pasta.config import config_fingerprint
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.judges import judge_records
from pasta.judges.config import JudgeSection
from pasta.judges.make import check_asked, check_judge, make_judge, metered
from pasta.judges.tally import VerdictTally
from pasta.stages.lock import sole_writer
from pasta.stages.progress import Progress
from pasta.stages.records import Record
from pasta.stages.run import check_apart, nothing_to_do, stage_run
from pasta.stages.shards import (
    content_digest,
    done_shards,
    iter_records,
    read_shard,
    shard_path,
    write_shard,
)
from pasta.stages.stage import StageOutput, input_fingerprint, model_inputs
from pasta.tracking import Tracker

CONFIG = ScoreConfig
VERDICTS = "verdicts"


def parser() -> ArgumentParser:
    """The command line."""
    made = job_parser("score", __doc__, "configs/score/atlas.yaml", "score anew, from the existing verdicts")
    made.add_argument("--rejudge", action="store_true", help="forget the verdicts too")
    return made


def main() -> int:
    config, options = parse_arguments(parser(), ScoreConfig)
    restart = options.restart or options.rejudge
    return run(config, restart=restart, rejudge=options.rejudge, address=options.address)


def stage(config: ScoreConfig, *, restart: bool = False) -> StageOutput:
    """The stage on disk. Raises UserError for samples or a judge that cannot be used."""
    check_judge(config.judge)
    sample_shards(config.samples)
    check_apart(config.judgements_dir, config.output_dir, "judgements_dir")
    # The keys that a score depends on: not where verdicts are kept, nor how they are made.
    values = {
        "judge": config.judge.identity(),
        "quality_weight": config.weight,
        "speed": config.speed,
        "min_gap": config.min_gap,
    }
    inputs = {"samples": config.samples.absolute(), **_reward_input(config.judge)}
    return StageOutput(config.output_dir.absolute(), "score", values, inputs, restart=restart)


def judgements(config: ScoreConfig, *, restart: bool = False) -> StageOutput:
    """The verdicts on disk: a stage of their own, named after judge and samples: also after what these hold, since
    verdicts on answers that have been sampled again are of other texts."""
    samples = sample_shards(config.samples)
    inputs = {"samples": config.samples.absolute(), **_reward_input(config.judge)}
    values = {"judge": config.judge.identity(), "answers": content_digest(samples)}
    read = {name: input_fingerprint(name, path) for name, path in inputs.items()}
    place = config.judgements_dir.absolute() / config_fingerprint(values | read)[:16]
    return StageOutput(place, "judge", values, inputs, restart=restart, key="judgements_dir")


def run(
    config: ScoreConfig, *, restart: bool = False, rejudge: bool = False, address: str | None = None
) -> int:
    """Judge and score, and leave ``scores-*.jsonl``, ``pairs.jsonl`` and a manifest in ``config.output_dir``."""
    output = stage(config, restart=restart)
    if nothing_to_do(config.name, config.output_dir, output, "scores again"):
        return 0
    verdicts = judgements(config, restart=rejudge)
    samples = sample_shards(config.samples)
    lost = _lost(verdicts, samples) if verdicts.is_done else []
    is_whole = verdicts.is_done and not lost
    api_key = None if is_whole else judge_key(config.judge)
    if not is_whole:
        check_asked(config.judge, (record["messages"] for record in iter_records(samples)))
    option = "--rejudge" if rejudge else "--restart"
    write = partial(
        write_scores,
        samples,
        verdicts.output_dir,
        weight=config.weight,
        min_gap=config.min_gap,
        speed=config.speed,
    )
    resumes = "from the verdicts that are there"
    with stage_run(config, output, resumes=resumes, option=option) as job:
        if not is_whole:
            with sole_writer(verdicts.output_dir, "judgements_dir"):
                if lost:
                    named = ", ".join(path.name for path in lost)
                    print(f"{config.name}: {verdicts.output_dir}: {named}: lost, judged again", flush=True)
                    for path in lost:
                        path.unlink(missing_ok=True)
                    verdicts.reopen()
                work_dir = verdicts.start()
                verdicts.replace()
                if rejudge:  # the same command would forget the verdicts that are made from here on
                    output.replace()
                _judge(config, verdicts, work_dir, samples, api_key, job.tracker, address)
        if output.restarts:
            _check_pairs(write(None)[0], config)  # before the scores that are there are deleted
            output.replace()
        figures, histogram = write(job.work_dir)
        assert verdicts.manifest is not None
        figures |= {k: v for k, v in verdicts.manifest.figures.items() if k.startswith("judge_")}
        print(f"{config.name}: {counts_line(figures)}", flush=True)
        job.tracker.summary({f"score/{key}": value for key, value in figures.items()})
        if histogram:
            job.tracker.table("score/histogram", ["low", "high", "count"], histogram)
        _check_pairs(figures, config)
        job.finish(f"scores and {PAIRS_FILE}", figures, code_version())
    return 0


def _lost(verdicts: StageOutput, samples: list[Path]) -> list[Path]:
    """The shards that finished verdicts no longer have, or have in part."""
    shards = [(shard_path(verdicts.output_dir, VERDICTS, n), path) for n, path in enumerate(samples)]
    return [shard for shard, path in shards if not _is_whole(shard, path)]


def _is_whole(shard: Path, sampled: Path) -> bool:
    try:
        return [each["id"] for each in read_shard(shard)] == [each["id"] for each in read_shard(sampled)]
    except (UserError, KeyError):
        return False


def _check_pairs(figures: dict[str, float], config: ScoreConfig) -> None:
    if not figures["pairs"]:
        raise UserError(no_pairs(figures, config.samples))


def _judge(
    config: ScoreConfig,
    verdicts: StageOutput,
    work_dir: Path,
    samples: list[Path],
    api_key: str | None,
    tracker: Tracker,
    address: str | None,
) -> None:
    """Rate the shards that are not rated yet in ``work_dir``; leaves the verdicts in a directory of their own."""
    done = done_shards(work_dir, VERDICTS)
    left = {number: path for number, path in enumerate(samples) if number not in done}
    tally = VerdictTally(work_dir)
    tally.count(_given(iter_records(shard_path(work_dir, VERDICTS, number) for number in sorted(done))))
    progress = Progress(
        f"{config.name}, judging", len(samples), "shards", len(done), tracker=tracker, job="score"
    )

    def finished(number: int, result: tuple[list[Record], dict[str, float]]) -> None:
        records, usage = result
        tally.spend(usage)
        write_shard(work_dir, VERDICTS, number, records)
        tally.count(_given(records))
        progress.add(1, tally, {f"score/{key}": value for key, value in tally.figures().items()})

    make = partial(_make, config.judge, work_dir, api_key)
    run_shards(make, left, finished, config.workers, address)
    verdicts.finish(tally.figures(), code_version())


def _given(records: Iterable[Record]) -> Iterator[Record]:
    return (verdict for record in records for verdict in record["verdicts"] if verdict is not None)


def _make(section: JudgeSection, work_dir: Path, api_key: str | None) -> Work:
    """On a worker: make the judge once; then a shard's verdicts, and the judge's usage."""
    judge = make_judge(section, work_dir, api_key)
    return metered(judge, lambda path: judge_records(judge, read_shard(path)))


def _reward_input(judge: JudgeSection) -> dict[str, str | Path]:
    return model_inputs({"judge.reward.model": judge.reward.model if judge.reward else None})


if __name__ == "__main__":
    run_main(main)
