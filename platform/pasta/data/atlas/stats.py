"""Shape of the corpus: ``python -m pasta.data.atlas.stats [count]`` prints lengths, chunks and speedups by family."""

import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pasta.data.atlas.tasks import AtlasTask, iter_corpus
from pasta.data.atlas.tokenizer import train_tokenizer
from pasta.lang import Chunk, Codec, Document, Item, Sync, Text, plain_ids
from pasta.statistics import geometric_mean, percentile


@dataclass(frozen=True)
class Shape:
    """Counts of one answer; lengths in tokens, the end token included."""

    family: str
    prompt: int
    sequential: int
    critical: int
    chunks: int
    chunk_lengths: tuple[int, ...]
    depth: int

    @property
    def speedup(self) -> float:
        return self.sequential / self.critical


def critical_path(items: Sequence[Item], codec: Codec, start: int = 0) -> int:
    """Steps until a thread that starts at step ``start`` has emitted its items, waiting as the syncs say."""
    now, pending = start, start
    for item in items:
        if isinstance(item, Text):
            now += len(codec.encode_text(item.text))
        elif isinstance(item, Sync):
            now = max(now, pending) + 1
        else:
            now += len(codec.encode_promise(item.topic, item.tokens))
            pending = max(pending, critical_path(item.items, codec, now) + 1)
    return max(now, pending)


def shape_of(task: AtlasTask, codec: Codec) -> Shape:
    items = task.document.items
    chunks = [item for item in items if isinstance(item, Chunk)]
    return Shape(
        family=task.family,
        prompt=len(codec.encode_prompt(task.messages)),
        sequential=len(plain_ids(codec, task.document)),
        critical=critical_path(items, codec) + 1,
        chunks=sum(1 for _ in task.document.chunks()),
        chunk_lengths=tuple(len(codec.encode(Document(chunk.items))) for chunk in chunks),
        depth=task.document.depth(),
    )


def _line(label: str, shapes: Sequence[Shape], total: int) -> str:
    lengths = [shape.sequential for shape in shapes]
    chunk_lengths = [length for shape in shapes for length in shape.chunk_lengths]
    inside = sum(chunk_lengths) / sum(lengths)
    speedup = geometric_mean([s.speedup for s in shapes]) if shapes else math.nan
    return (
        f"{label:14s} {len(shapes) / total:6.1%} {median(s.prompt for s in shapes):6.0f} {min(lengths):5d} "
        f"{median(lengths):6.0f} {percentile(lengths, 0.9):5.0f} {max(lengths):5d} "
        f"{median(s.chunks for s in shapes):6.1f} {max(s.chunks for s in shapes):4d} "
        f"{median(chunk_lengths) if chunk_lengths else 0:6.0f} {inside:6.1%} "
        f"{max(s.depth for s in shapes):5d} {speedup:8.2f}"
    )


def report(tasks: Sequence[AtlasTask], codec: Codec) -> str:
    """A table by family, then for prompts with chunks and for all."""
    shapes = [shape_of(task, codec) for task in tasks]
    groups: dict[str, list[Shape]] = defaultdict(list)
    for shape in shapes:
        groups[shape.family].append(shape)
    head = (
        f"{'family':14s} {'share':>6s} {'prompt':>6s} {'min':>5s} {'median':>6s} {'p90':>5s} {'max':>5s} "
        f"{'chunks':>6s} {'max':>4s} {'length':>6s} {'inside':>6s} {'depth':>5s} {'speedup':>8s}"
    )
    lines = [head, *(_line(name, group, len(shapes)) for name, group in groups.items())]
    with_chunks = [shape for shape in shapes if shape.chunks]
    lines += [_line("with chunks", with_chunks, len(shapes)), _line("all", shapes, len(shapes))]
    mean = sum(shape.sequential for shape in shapes) / len(shapes)
    return "\n".join([*lines, f"mean answer {mean:.0f} tokens"])


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        codec = Codec(train_tokenizer(folder))
    print(report([*iter_corpus(1, "train", count, codec)], codec))


if __name__ == "__main__":
    main()
