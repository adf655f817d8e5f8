"""The score stage's files: scores and pairs."""

from collections.abc import Sequence
from pathlib import Path

from pasta.candidates.scoring import PAIRS_FILE, ScoreSummary, Speed, choose_pair, scored
from pasta.errors import UserError
from pasta.files import write_whole
from pasta.stages.records import Record, record_line
from pasta.stages.shards import read_shard, shard_path, write_shard


def write_scores(
    samples: Sequence[Path],
    verdicts: Path,
    work_dir: Path,
    *,
    weight: float,
    min_gap: float,
    speed: Speed = "speedup",
) -> tuple[dict[str, float], list[list[float]]]:
    """Write ``scores-*.jsonl`` and ``pairs.jsonl`` to ``work_dir``; returns figures and the histogram of scores.

    Shard n of ``samples`` goes with ``verdicts-n`` and becomes ``scores-n``. Raises UserError if they do not belong
    together.
    """
    summary = ScoreSummary()
    pairs: list[Record] = []
    for number, path in enumerate(samples):
        records = read_shard(path)
        judged = {
            entry["id"]: entry["verdicts"] for entry in read_shard(shard_path(verdicts, "verdicts", number))
        }
        if judged.keys() != {record["id"] for record in records}:
            raise UserError(f"{verdicts}: its verdicts are not those of {path}; delete it to judge anew")
        out = []
        for record in records:
            scores = scored(record, judged[record["id"]], weight, speed)
            pair, dropped = choose_pair(record, scores, min_gap, weight)
            summary.add(scores, pair, dropped)
            out.append(scores)
            if pair is not None:
                pairs.append(pair)
        write_shard(work_dir, "scores", number, out)
    write_whole(work_dir / PAIRS_FILE, "".join(map(record_line, pairs)))
    return summary.figures(), summary.histogram()
