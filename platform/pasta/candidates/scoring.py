r"""Scores of candidates, and the pair of best and worst that a preference trainer learns from.

    score(y) = speedup(y) + λ · quality(y)       λ = inf: quality(y), and of equal quality the faster is better

after the paper's stage 2 (arXiv 2502.11517, section 4; design section 1), which takes λ from {1, 2, 4, 8, inf}. Both
terms are without a unit and are not normalised over a group, so that scores of different prompts and rounds compare:

* speedup(y) = tokens of the sequential twin's answer / critical path of y in steps, tags counted on both sides (design
  section 3, as in ``pasta.evaluation.results.outcomes``); 1 means as many steps as the twin takes.
  ``speed: written`` takes min(tokens of the twin's answer, tokens of y without its tags) / critical path: an answer
  that leaves text out is no faster for it. (With the tags counted a third of short parts could be left out for free.)
  ``speed: parallelism`` takes tokens of y / critical path, which pays for tags and for text that nobody asked for: it
  is there to be compared with.
* quality(y) from 0 to 1 is the judge's (``pasta.judges``): λ is the speedup for which a perfect answer would be
  given up for a worthless one. This scale of quality is the project's own.

λ = inf is the limit of growing λ, so that speed decides among answers of one quality. Where quality is a judge's win
rate, as in the paper, no two answers are equal and it is quality alone; where it is a share of right statements, most
answers to a prompt are.

Candidates that are no answers (cut at the length limit, empty) and those without a valid verdict have no score. With
``speed: speedup`` an answer that leaves parts out scores as faster, since it takes fewer steps: only its quality counts
against it, and less so the lower λ is.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pasta.errors import UserError
from pasta.files import write_whole
from pasta.judges.config import JudgeSection
from pasta.judges.judge import why_dropped, why_unfit
from pasta.stages.records import Record, record_line
from pasta.stages.shards import read_shard, shard_path, write_shard
from pasta.stages.workers import WorkersSection
from pasta.tracking import TrackingSection

#: The file that ``pasta.data.pairs`` reads. Its name stands here too: importing that module takes a training stack.
PAIRS_FILE = "pairs.jsonl"
#: Why a prompt gives no pair.
DROPPED = ("skipped", "baseline_cut", "too_few", "identical", "ties")
#: Why a candidate has no score.
UNSCORED = ("cut", "empty", "invalid")
_BINS = 20

#: What a score counts as speed.
Speed = Literal["speedup", "written", "parallelism"]


@dataclass(frozen=True, slots=True)
class ScoreConfig:
    """One score stage: every key of ``configs/score/*.yaml``.

    ``samples`` is the directory of a sample stage. ``quality_weight`` is λ, ``inf`` for quality before speed; ``speed``
    is the other term. The best and the worst score are a tie if they differ by less than ``min_gap``; with λ = inf the
    fastest and the slowest answer are then a pair, if their speeds differ by as much. Verdicts do not
    depend on λ: they lie in ``judgements_dir``, and other score stages with the same samples and judge take them from
    there.
    """

    name: str
    output_dir: Path
    samples: Path
    judge: JudgeSection
    quality_weight: float | Literal["inf"]
    speed: Speed = "speedup"
    min_gap: float = 1e-6
    judgements_dir: Path = Path("runs/judgements")
    run_dir: Path = Path("runs/score")
    workers: WorkersSection = field(default_factory=WorkersSection)
    tracking: TrackingSection = field(default_factory=TrackingSection)

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise ValueError(f"quality_weight {self.quality_weight}: expected 0 or more, or inf")
        if not 0 < self.min_gap < math.inf:
            raise ValueError(f"min_gap {self.min_gap}: expected a positive number")
        if self.judge.kind == "teacher" and self.workers.num_workers != 1:
            raise ValueError(
                f"workers.num_workers {self.workers.num_workers}: expected 1 with judge.kind: teacher; one worker "
                "keeps the endpoint's limits and has judge.teacher.endpoint.concurrency requests under way"
            )

    @property
    def weight(self) -> float:
        """λ as a number."""
        return float(self.quality_weight)


def score_of(speed: float, quality: float, weight: float) -> float:
    """speed + λ · quality; for λ = inf quality, and ``choose_pair`` looks at speed where it is equal."""
    return quality if math.isinf(weight) else speed + weight * quality


def counted_tokens(speed: Speed, twin: int, tokens: int, text: int) -> int:
    """The tokens that an answer's speed divides by its critical path. ``twin`` counts the twin's, ``tokens`` all of the
    answer's own, ``text`` its own without tags."""
    return {"speedup": twin, "written": min(twin, text), "parallelism": tokens}[speed]


def scored(
    record: Record, verdicts: Sequence[Record | None], weight: float, speed: Speed = "speedup"
) -> Record:
    """A sample record with speedup, quality and score of each candidate: ``scores-*.jsonl`` has one a line.

    ``speed`` says what scores count as such. ``verdicts`` are ``judge_records``' for it. A candidate without a score
    has the reason in its place, ``"unscored"``: one of ``UNSCORED``, or ``baseline_cut``.
    """
    if why_dropped(record) == "skipped":
        return dict(record)
    out: Record = {
        "id": record["id"],
        "messages": record["messages"],
        "twin": record["twin"],
        "candidates": [],
    }
    judged = iter(verdicts)
    for candidate in record["candidates"]:
        entry = {key: value for key, value in candidate.items() if key != "response_ids"}
        twin, path = record["twin"]["num_tokens"], candidate["critical_path"]
        text = candidate.get("text_tokens")
        if text is None and speed == "written":
            raise UserError(
                f"speed: written: the samples of {record['id']} do not say their text_tokens (an earlier commit made "
                "them); expected samples that do: sample again"
            )
        entry["speedup"] = twin / path
        entry["speed"] = counted_tokens(speed, twin, candidate["num_tokens"], text or 0) / path
        verdict = next(judged, None)
        if verdict is not None and verdict["quality"] is not None:
            entry |= verdict
            entry["score"] = score_of(entry["speed"], verdict["quality"], weight)
        else:
            entry["unscored"] = why_dropped(record) or why_unfit(candidate) or "invalid"
            entry |= verdict or {}
        out["candidates"].append(entry)
    return out


def choose_pair(record: Record, scores: Record, min_gap: float, weight: float) -> tuple[Record | None, str]:
    """The best and the worst candidate of a prompt as a pair, or None and why not (one of ``DROPPED``).

    With ``weight`` inf, speed decides among equal scores, and among all of them if no two differ by ``min_gap``. Of
    what is equal still the first is taken: candidates are drawn alike, so their order says nothing. ``record`` is the
    sample record, ``scores`` the same from ``scored``.
    """
    if why := why_dropped(record):
        return None, why
    answers = [n for n, entry in enumerate(scores["candidates"]) if "score" in entry]
    if len(answers) < 2:
        return None, "too_few"
    entries = scores["candidates"]
    if len({entries[n]["annotated"] for n in answers}) == 1:
        return None, "identical"

    def gap(key: str) -> float:
        values = [entries[n][key] for n in answers]
        return float(max(values) - min(values))

    keys = ["score", "speed"] if math.isinf(weight) else ["score"]
    while keys and gap(keys[0]) < min_gap:
        keys.pop(0)
    if not keys:
        return None, "ties"
    best = max(answers, key=lambda n: (*(entries[n][key] for key in keys), -n))
    worst = min(answers, key=lambda n: (*(entries[n][key] for key in keys), n))
    pair: Record = {"id": record["id"], "messages": record["messages"], "num_candidates": len(answers)}
    for side, n in (("chosen", best), ("rejected", worst)):
        pair[side] = entries[n]["annotated"]
        pair |= {f"{side}_{key}": entries[n][key] for key in ("score", "speedup", "quality")}
        pair[f"{side}_ids"] = record["candidates"][n]["response_ids"]
    return pair, ""


class ScoreSummary:
    """Adds up counts and means over prompts, candidates and pairs."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(("prompts", "candidates", "pairs", *DROPPED, *UNSCORED), 0)
        self.scores: list[float] = []
        self._sums: dict[str, float] = {}

    def add(self, scores: Record, pair: Record | None, dropped: str) -> None:
        """One prompt: its scored record, and its pair or why it has none."""
        self._counts["prompts"] += 1
        for entry in scores.get("candidates", ()):
            self._counts["candidates"] += 1
            if "score" not in entry:
                # With the twin's answer cut, none of a prompt's candidates is judged: that prompt is counted instead.
                if entry["unscored"] in UNSCORED:
                    self._counts[entry["unscored"]] += 1
            else:
                self.scores.append(entry["score"])
                self._sum({"quality": entry["quality"], "speedup": entry["speedup"]})
        if pair is None:
            self._counts[dropped] += 1
            return
        self._counts["pairs"] += 1
        keys = [f"{side}_{key}" for side in ("chosen", "rejected") for key in ("score", "speedup", "quality")]
        self._sum({key: pair[key] for key in keys})

    def figures(self) -> dict[str, float]:
        """Counts, and means (``mean_…``) of quality, speedup and score over candidates and over both sides of pairs."""
        means = {}
        for key, total in self._sums.items():
            count = self._counts["pairs"] if key.startswith(("chosen", "rejected")) else len(self.scores)
            means[f"mean_{key}"] = total / count
        if self.scores:
            means["mean_score"] = sum(self.scores) / len(self.scores)
        return {key: float(value) for key, value in self._counts.items()} | means

    def histogram(self) -> list[list[float]]:
        """Rows [low, high, count] of the scores, in bins of equal width; the last one holds its upper end too."""
        if not self.scores:
            return []
        low, high = min(self.scores), max(self.scores)
        width = (high - low) / _BINS or 1.0
        counts = [0] * _BINS
        for score in self.scores:
            counts[min(int((score - low) / width), _BINS - 1)] += 1
        return [[low + n * width, low + (n + 1) * width, count] for n, count in enumerate(counts)]

    def _sum(self, values: dict[str, float]) -> None:
        for key, value in values.items():
            self._sums[key] = self._sums.get(key, 0.0) + value


def no_pairs(figures: dict[str, float], samples: Path) -> str:
    """The error message when no prompt gives a pair."""
    why = ", ".join(f"{int(figures[key])} {key}" for key in DROPPED if figures[key])
    unscored = ", ".join(f"{int(figures[key])} {key}" for key in UNSCORED if figures[key]) or "none"
    again = (
        "; judgements_dir holds why they are invalid; jobs.score --rejudge asks again"
        if figures["invalid"]
        else ""
    )
    return (
        f"samples: {samples}: no pair to learn from in {int(figures['prompts'])} prompts ({why}; candidates without a "
        f"score: {unscored}){again}"
    )


def counts_line(figures: dict[str, float]) -> str:
    """Pairs and what was left out, in one line."""

    def named(keys: Iterable[str]) -> str:
        return ", ".join(f"{int(figures[key]):,} {key}" for key in keys)

    return (
        f"{int(figures['pairs']):,} pairs of {int(figures['prompts']):,} prompts (without one: {named(DROPPED)}); "
        f"{int(figures['candidates']):,} candidates (without a score: {named(UNSCORED)})"
    )


def write_scores(
    samples: Sequence[Path],
    verdicts: Path,
    work_dir: Path | None,
    *,
    weight: float,
    min_gap: float,
    speed: Speed = "speedup",
) -> tuple[dict[str, float], list[list[float]]]:
    """Write ``scores-*.jsonl`` and ``pairs.jsonl`` to ``work_dir``, nothing without one; returns figures and the
    histogram of scores.

    Shard n of ``samples`` goes with ``verdicts-n`` and becomes ``scores-n``. Raises UserError if they do not belong
    together.
    """
    summary = ScoreSummary()
    pairs: list[Record] = []
    for number, path in enumerate(samples):
        records = read_shard(path)
        shard = shard_path(verdicts, "verdicts", number)
        judged = {entry["id"]: entry["verdicts"] for entry in read_shard(shard)}
        if judged.keys() != {record["id"] for record in records}:
            raise UserError(f"{shard}: its verdicts are not those of {path}; delete it to judge anew")
        out = []
        for record in records:
            scores = scored(record, judged[record["id"]], weight, speed)
            pair, dropped = choose_pair(record, scores, min_gap, weight)
            summary.add(scores, pair, dropped)
            out.append(scores)
            if pair is not None:
                pairs.append(pair)
        if work_dir is not None:
            write_shard(work_dir, "scores", number, out)
    if work_dir is not None:
        write_whole(work_dir / PAIRS_FILE, "".join(map(record_line, pairs)))
    return summary.figures(), summary.histogram()
