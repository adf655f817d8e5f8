"""The shape of atlas answers: lengths, chunks and speedups by family."""

from collections.abc import Sequence
from dataclasses import dataclass

from pasta.data.atlas.tasks import AtlasTask
from pasta.lang import Chunk, Codec, Document, Item, Sync, Text, plain_ids


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
