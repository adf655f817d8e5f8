"""Validates annotations: they must strip to the answer, and their chunks must be worth their tags."""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pasta.bounds import check_not_negative, check_positive
from pasta.data.annotate.repair import Strip, Unrepairable, read_annotation
from pasta.data.atlas.plan import token_counter, with_estimates
from pasta.data.measures import Measures, measure_document
from pasta.lang import Chunk, Codec, CodecError, Document, Item, Sync, Text, parse, render, to_text
from pasta.lang.codec import MAX_ESTIMATE

CountTokens = Callable[[tuple[Item, ...]], int]


@dataclass(frozen=True, slots=True)
class ChecksSection:
    """The requirements on an annotation; lengths in tokens of the run's tokenizer, tags included.

    ``strip`` lets white space differ (``whitespace``; the answer's own is put back) or not (``exact``). A chunk nested
    deeper than ``max_depth``, shorter than ``min_chunk_tokens`` or longer than ``max_chunk_tokens`` is dissolved into
    its parent; so are the shortest above ``max_threads`` (the main thread counts). Below ``min_speedup`` (theoretical)
    all are. ``keep_unannotated`` keeps answers without chunks: a model must learn where nothing is independent.
    """

    strip: Strip = "whitespace"
    max_depth: int = 2
    min_chunk_tokens: int = 10
    max_chunk_tokens: int = 1000
    max_threads: int = 64
    min_speedup: float = 1.0
    keep_unannotated: bool = True

    def __post_init__(self) -> None:
        check_positive(self, "max_depth", "min_chunk_tokens", "max_threads")
        check_not_negative(self, "min_speedup")
        if not self.min_chunk_tokens <= self.max_chunk_tokens <= MAX_ESTIMATE:
            raise ValueError(
                f"max_chunk_tokens {self.max_chunk_tokens}: expected min_chunk_tokens to {MAX_ESTIMATE}, the largest "
                "estimate"
            )


@dataclass(frozen=True, slots=True)
class Checked:
    """A valid annotation, as a document and in text form: what was put right, how often, and its measures."""

    document: Document
    text: str
    repairs: dict[str, int]
    measures: Measures

    @property
    def figures(self) -> dict[str, Any]:
        """What a record says of itself: lengths in tokens, steps of the critical path, threads, depth."""
        return {
            "tokens": self.measures.plain_tokens,
            "critical_path": self.measures.trace.critical_path,
            "speedup": round(self.measures.speedup, 3),
            "threads": self.measures.num_threads,
            "depth": self.measures.depth,
            "syncs": self.measures.num_syncs,
            "chunk_tokens": list(self.measures.chunk_tokens),
        }


class Validator:
    """Checks annotations of one run. Raises Unrepairable for those that cannot be kept."""

    def __init__(self, checks: ChecksSection, codec: Codec) -> None:
        self.checks = checks
        self.codec: Codec = _Remembering(codec)

    def check(self, annotated: str, answer: str) -> Checked:
        """Read ``annotated`` (text form), repair what has only one right form, set its estimates, and measure it.

        The result strips to ``answer`` exactly. Raises Unrepairable with code ``malformed``, ``differs`` or
        ``tokenizer``.
        """
        read = read_annotation(annotated, answer, self.checks.strip)
        repairs: Counter[str] = Counter({"put right": int(read.repaired)})
        count_tokens = lru_cache(maxsize=256)(token_counter(self.codec))
        try:
            document = self._shape(read.document, count_tokens, repairs)
            document = with_estimates(document, count_tokens)
            measures = measure_document(document, self.codec)
            if measures.num_threads > 1 and measures.speedup < self.checks.min_speedup:
                repairs["no gain"] += 1
                document = Document((Text(answer),))
                measures = measure_document(document, self.codec)
        except CodecError as error:
            raise Unrepairable("tokenizer", str(error)) from None
        text = to_text(document)
        assert parse(text) == document, "what is written down is what was checked"
        assert render(document) == answer, "repairs never change the answer"
        return Checked(document, text, {name: count for name, count in repairs.items() if count}, measures)

    def _shape(self, document: Document, count_tokens: CountTokens, repairs: Counter[str]) -> Document:
        """The document without chunks that break a limit, and without syncs that wait for nothing."""
        items, before = document.items, None
        # A chunk from which tags have gone may be too short itself.
        while items != before:
            before = items
            items = self._dissolve(items, 1, count_tokens, repairs)
            lengths = [count_tokens(chunk.items) for chunk in Document(items).chunks()]
            if len(lengths) >= self.checks.max_threads:
                longest = sorted(range(len(lengths)), key=lambda number: -lengths[number])
                kept = frozenset(longest[: self.checks.max_threads - 1])
                repairs["too short, dissolved"] += len(lengths) - len(kept)
                items = _keep_chunks(items, kept, itertools.count())
            items, idle = _without_idle_syncs(items)
            repairs["idle sync"] += idle
        return Document(items)

    def _dissolve(
        self,
        items: tuple[Item, ...],
        depth: int,
        count_tokens: CountTokens,
        repairs: Counter[str],
    ) -> tuple[Item, ...]:
        out: list[Item] = []
        for item in items:
            if not isinstance(item, Chunk):
                out.append(item)
                continue
            inner = self._dissolve(item.items, depth + 1, count_tokens, repairs)
            length = count_tokens(inner)
            fault = (
                "too deep"
                if depth > self.checks.max_depth
                else "too short"
                if length < self.checks.min_chunk_tokens or not render(Document(inner)).strip()
                else "too long"
                if length > self.checks.max_chunk_tokens
                else None
            )
            if fault is None:
                # What a teacher wrote may be more than can be encoded; the true length is put in later.
                out.append(Chunk(item.topic, min(item.tokens, MAX_ESTIMATE), inner))
            else:
                repairs[f"{fault}, dissolved"] += 1
                out += inner
        return tuple(out)


class _Remembering(Codec):
    """A codec that caches the encodings of one record's texts. Each is encoded for its check, its estimates, its
    measures, and once more for each level of nesting."""

    def __init__(self, codec: Codec) -> None:
        self.__dict__.update(codec.__dict__)
        self._ids = lru_cache(maxsize=1024)(codec.encode_text)
        self._texts = lru_cache(maxsize=1024)(codec.decode_text)

    def encode_text(self, text: str) -> list[int]:
        return self._ids(text)

    def decode_text(self, ids: Sequence[int]) -> str:
        return self._texts(tuple(ids))


def _keep_chunks(items: tuple[Item, ...], kept: Collection[int], numbers: Iterator[int]) -> tuple[Item, ...]:
    """Items with all chunks dissolved but those of the numbers ``kept``, counted in storage order."""
    out: list[Item] = []
    for item in items:
        if not isinstance(item, Chunk):
            out.append(item)
            continue
        number = next(numbers)
        inner = _keep_chunks(item.items, kept, numbers)
        out += [Chunk(item.topic, item.tokens, inner)] if number in kept else inner
    return tuple(out)


def _without_idle_syncs(items: tuple[Item, ...]) -> tuple[tuple[Item, ...], int]:
    """Items without syncs that nothing is outstanding at, or that nothing follows: a thread's end waits anyway."""
    out: list[Item] = []
    outstanding = idle = 0
    last = max((i for i, item in enumerate(items) if not isinstance(item, Sync)), default=-1)
    for index, item in enumerate(items):
        if isinstance(item, Chunk):
            inner, dropped = _without_idle_syncs(item.items)
            idle += dropped
            outstanding += 1
            out.append(Chunk(item.topic, item.tokens, inner))
        elif isinstance(item, Sync) and (not outstanding or index > last):
            idle += 1
        else:
            outstanding = 0 if isinstance(item, Sync) else outstanding
            out.append(item)
    return tuple(out), idle
