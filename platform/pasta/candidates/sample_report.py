"""What a sample stage says while it goes, and the figures of its records."""

import time
from collections.abc import Iterable, Sequence

from pasta.stages.records import Record
from pasta.statistics import geometric_mean
from pasta.tracking import Tracker


class SampleProgress:
    """Prints and tracks one line a finished shard: prompts done, tokens a second since the start, time left."""

    def __init__(self, name: str, num_prompts: int, num_done: int, tracker: Tracker) -> None:
        self._name, self._num_prompts, self._tracker = name, num_prompts, tracker
        self._done = self._found = num_done
        self._tokens = self._shards = 0
        self._begun = self._last = time.perf_counter()
        found = f", {num_done} found from an earlier run" if num_done else ""
        print(f"{name}: {num_prompts} prompts{found}", flush=True)

    def add(self, records: Sequence[Record]) -> None:
        """A shard is on disk."""
        self._shards += 1
        self._done += len(records)
        self._tokens += sum(map(num_tokens, records))
        self._last = time.perf_counter()
        left = (self._last - self._begun) / (self._done - self._found) * (self._num_prompts - self._done)
        print(
            f"{self._name}: {self._done}/{self._num_prompts} prompts  {self.tokens_per_second:,.0f} tokens/s  "
            f"eta {left / 60:.1f} min",
            flush=True,
        )
        figures = {
            "sample/prompts": float(self._done),
            "sample/tokens": float(self._tokens),
            "sample/tokens_per_second": self.tokens_per_second,
        }
        self._tracker.log(figures, step=self._done)

    @property
    def tokens_per_second(self) -> float:
        """Tokens decoded, twin's and candidates', by the wall clock from the start to the last shard (models are loaded
        in that time)."""
        return self._tokens / max(self._last - self._begun, 1e-9)


def num_tokens(record: Record) -> int:
    """Tokens decoded for a record: the twin's answer and all candidates, tags counted."""
    if "skipped" in record:
        return 0
    return int(record["twin"]["num_tokens"] + sum(answer["num_tokens"] for answer in record["candidates"]))


def sample_figures(records: Iterable[Record]) -> dict[str, float]:
    """Counts over all records; the geometric mean of the theoretical speedup is over answers that ended themselves.

    Theoretical speedup = the twin's tokens / the candidate's critical path (design section 3).
    """
    counts = dict.fromkeys(
        ("prompts", "skipped", "candidates", "tokens", "cut", "twins_cut", "with_threads"), 0.0
    )
    speedups: list[float] = []
    for record in records:
        counts["prompts"] += 1
        counts["tokens"] += num_tokens(record)
        if "skipped" in record:
            counts["skipped"] += 1
            continue
        twin = record["twin"]
        counts["twins_cut"] += twin["finish_reason"] != "stop"
        for answer in record["candidates"]:
            ended = answer["finish_reason"] == "stop"
            counts["candidates"] += 1
            counts["cut"] += not ended
            counts["with_threads"] += answer["num_threads"] > 1
            if ended and twin["finish_reason"] == "stop":
                speedups.append(twin["num_tokens"] / answer["critical_path"])
    return counts | ({"speedup": geometric_mean(speedups)} if speedups else {})
