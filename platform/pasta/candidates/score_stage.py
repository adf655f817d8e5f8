"""The score stage's files: verdicts as they come, then scores and pairs."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from pasta.candidates.scoring import PAIRS_FILE, ScoreSummary, choose_pair, scored
from pasta.errors import UserError
from pasta.files import write_whole
from pasta.judges.tally import VerdictTally
from pasta.stages.records import Record
from pasta.stages.shards import read_shard, shard_path, write_shard
from pasta.tracking import Tracker


def write_scores(
    samples: Sequence[Path], verdicts: Path, work_dir: Path, *, weight: float, min_gap: float
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
            scores = scored(record, judged[record["id"]], weight)
            pair, dropped = choose_pair(record, scores, min_gap)
            summary.add(scores, pair, dropped)
            out.append(scores)
            if pair is not None:
                pairs.append(pair)
        write_shard(work_dir, "scores", number, out)
    write_whole(work_dir / PAIRS_FILE, "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs))
    return summary.figures(), summary.histogram()


class JudgeProgress:
    """Prints and tracks one line a judged shard; adds up what judging took in this run, and all invalid verdicts."""

    def __init__(
        self, name: str, num_shards: int, num_done: int, found: Sequence[Record], tracker: Tracker
    ) -> None:
        self._name, self._num_shards, self._tracker = name, num_shards, tracker
        self._done = self._found = num_done
        self._tally = VerdictTally()
        self._count(found)
        self._begun = time.perf_counter()
        earlier = f", {num_done} found from an earlier run" if num_done else ""
        print(f"{name}: {num_shards} shards to judge{earlier}", flush=True)

    def add(self, records: Sequence[Record], usage: dict[str, float]) -> None:
        """A shard is on disk; ``usage`` is what it took."""
        self._done += 1
        self._count(records)
        self._tally.spend(usage)
        left = (
            (time.perf_counter() - self._begun) / (self._done - self._found) * (self._num_shards - self._done)
        )
        print(
            f"{self._name}: judged {self._done}/{self._num_shards} shards  {self._tally}  eta {left / 60:.1f} min",
            flush=True,
        )
        tracked = {f"score/{key}": value for key, value in self.figures().items()}
        self._tracker.log(tracked, step=self._done)

    def figures(self) -> dict[str, float]:
        """Verdicts and invalid ones over all shards; usage of this run."""
        return self._tally.figures()

    def _count(self, records: Sequence[Record]) -> None:
        self._tally.count(
            verdict for record in records for verdict in record["verdicts"] if verdict is not None
        )
