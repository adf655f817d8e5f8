"""Annotated answers as examples of training: in several processes where there are many, in the order of the source."""

import hashlib
import json
import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pasta.data.atlas.corpus import Annotated
from pasta.data.atlas.plan import token_counter
from pasta.data.linearise import FORMS, Example, make_example, without_syncs
from pasta.data.sections import DataSection
from pasta.errors import CutShort
from pasta.interpreter import IGNORE
from pasta.lang import Codec, parse
from pasta.lang.document import in_tens
from pasta.rows import asked, messages_of, placed, prompt_of, read_rows, text_of

Item = TypeVar("Item")
Result = TypeVar("Result")
#: An answer as it is read, and its place ``FILE:LINE``.
Row = tuple[str, dict[str, Any]]

_ROW = '{"messages": [{"role", "content"}], "annotated": text}'
#: Answers that a process encodes at a time.
BLOCK_ANSWERS = 1000
#: The figures of ``make_examples``.
COUNTS = ("num_documents", "num_tokens", "num_targets", "num_too_long")
#: In a process of ``in_processes``: what it does.
_work: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Examples, and figures of the answers that they were made of; ``prompts`` are digests of what was asked."""

    examples: list[Example]
    counts: Counter[str]
    prompts: list[bytes]


def read_answers(paths: Iterable[Path]) -> Iterator[Row]:
    """The rows of JSONL files of ``{"messages": [...], "annotated": text form}``, or with ``"prompt"``, a text, for a
    single message. Raises UserError, naming the line, for a line that is no object."""
    for path in paths:
        yield from read_rows(path, key="data.source", expected="'atlas' or a JSONL file", row=_ROW)


def annotated(row: Row) -> Annotated:
    """Messages and annotated answer of a row. Raises UserError, naming its place, if it has none."""
    place, values = row
    with placed(place):
        messages, text = asked(prompt_of(values) or messages_of(values)), text_of(values, "annotated")
    with placed(f"{place}: annotated"):
        document = parse(text)
    return messages, document


def make_examples(
    answers: Iterable[Annotated], codec: Codec, options: DataSection, counts: Counter[str], before: int = 0
) -> Iterator[Example]:
    """Examples of the answers that fit a row; counts those that fit and those that do not (``COUNTS``).

    Raises UserError for an answer that has no tokens, numbered as in the source: ``before`` others stand there before
    these.
    """
    for messages, document in answers:
        counts["num_documents"] += 1
        if not options.syncs:
            document = without_syncs(document)
        for form in FORMS[options.mode]:
            with placed(f"data.source: {options.source}: answer {before + counts['num_documents']}"):
                example = make_example(codec, messages, document, form)
            if len(example) > options.max_length:
                counts["num_too_long"] += 1
                continue
            counts["num_tokens"] += len(example)
            counts["num_targets"] += sum(label != IGNORE for label in example.shift_labels)
            yield example


def make_encoder(options: DataSection, tokenizer: Any) -> Callable[[tuple[int, Sequence[Row]]], Encoded]:
    """Return a function that makes examples of rows; with them it takes how many rows stand before these in the
    source."""
    codec = Codec(tokenizer)
    count_tokens = token_counter(codec)

    def work(numbered: tuple[int, Sequence[Row]]) -> Encoded:
        before, rows = numbered
        answers, counts = [annotated(row) for row in rows], Counter[str]()
        examples = list(make_examples(answers, codec, options, counts, before))
        chunks = (
            () if options.mode == "sequential" else [each for _, found in answers for each in found.chunks()]
        )
        counts["num_chunks"] = len(chunks)
        counts["num_other_lengths"] = sum(
            chunk.tokens != in_tens(count_tokens(chunk.items)) for chunk in chunks
        )
        return Encoded(examples, counts, [_digest(messages) for messages, _ in answers])

    return work


def _digest(messages: Any) -> bytes:
    return hashlib.blake2b(json.dumps(messages).encode(), digest_size=16).digest()


def in_processes(
    make: Callable[[], Callable[[Item], Result]], items: Iterable[Item], workers: int
) -> Iterator[Result]:
    """What ``make()``, called once in each of the processes, gives of each of the items, in their order.

    Few are under way at once: results do not pile up. One worker is this process, and there are no more than CPUs.
    Where the caller, or an item, fails, the processes end. Raises CutShort if one of them has died.
    """
    workers = min(workers, os.cpu_count() or 1)
    if workers < 2:
        yield from map(make(), items)
        return
    context = multiprocessing.get_context("spawn")
    under_way: deque[Future[Result]] = deque()
    with ProcessPoolExecutor(workers, context, _begin, (make,)) as pool:
        try:
            for item in items:
                under_way.append(pool.submit(_do, item))
                if len(under_way) > 2 * workers:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BaseException as error:  # a Ctrl-C, or GeneratorExit, too
            for process in multiprocessing.active_children():
                process.terminate()
            pool.shutdown(cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise CutShort(
                    "a process that made training data has died (the system kills those for which it has no memory)"
                ) from None
            raise


def _begin(make: Callable[[], Callable[[Any], Any]]) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a trace
    _work = make()


def _do(item: Any) -> Any:
    return _work(item)
