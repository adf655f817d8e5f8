"""Token counts, thread structure and critical path of a document."""

from collections.abc import Sequence
from dataclasses import dataclass

from pasta.interpreter import UNBOUNDED, ConstraintError, Interpreter, Trace
from pasta.lang import Chunk, Codec, CodecError, Document, Item, Sync, annotated_ids, plain_ids


@dataclass(frozen=True, slots=True)
class Measures:
    """One document, counted.

    ``plain_tokens`` is the sequential answer, end-of-text included. ``chunk_tokens`` are the lengths that
    ``estimates`` estimate: all between a chunk's tags, nested promises and chunks included.
    """

    trace: Trace
    plain_tokens: int
    num_syncs: int
    depth: int
    chunk_tokens: tuple[int, ...]
    estimates: tuple[int, ...]
    topics: tuple[str, ...]
    sync_id: int

    @property
    def num_threads(self) -> int:
        """Threads, the main one included."""
        return len(self.trace.threads)

    @property
    def speedup(self) -> float:
        """Theoretical speedup: tokens of the sequential answer ÷ steps of the critical path, tags counted."""
        return self.plain_tokens / self.trace.critical_path


def measure_document(document: Document, codec: Codec) -> Measures:
    """Count a document. Raises CodecError if the tokenizer cannot carry it."""
    ids = annotated_ids(codec, document)
    interpreter = Interpreter(codec.grammar, UNBOUNDED, (), strict=False)
    try:
        interpreter.drive(0, ids)
    except ConstraintError as error:
        raise CodecError(f"tokenizer: it cannot carry this document ({error})") from None
    trace = interpreter.trace()
    chunks = list(document.chunks())  # in the order in which their threads are created
    return Measures(
        trace=trace,
        plain_tokens=len(plain_ids(codec, document)),
        num_syncs=_num_syncs(document.items),
        depth=document.depth(),
        chunk_tokens=tuple(len(codec.encode(Document(chunk.items))) for chunk in chunks),
        estimates=tuple(chunk.tokens for chunk in chunks),
        topics=("", *(chunk.topic for chunk in chunks)),
        sync_id=codec.control.sync,
    )


def _num_syncs(items: Sequence[Item]) -> int:
    return sum(_num_syncs(i.items) if isinstance(i, Chunk) else isinstance(i, Sync) for i in items)
