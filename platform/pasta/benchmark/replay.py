"""The replay stage of the benchmark: encodes documents, measures one after another, and computes metrics.

Tokens of real answers are counted by ``--tokenizer``. With ``words`` each word and punctuation mark, with the space
before it, is one token, whatever the model's vocabulary is: a forced token needs only an id that the model has. A
trained tokenizer with a large vocabulary makes somewhat more tokens of a text; the small one of the atlas would spell
real words out and make answers several times too long.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pasta.benchmark.documents import Entry, Recorded, document_files
from pasta.benchmark.machine import model_fingerprint
from pasta.benchmark.measurement import MeasuredPart
from pasta.benchmark.metrics import Found, Metric
from pasta.benchmark.speed import replay_metrics, replay_pair
from pasta.benchmark.steps import slot_for
from pasta.data.atlas.plan import token_counter, with_estimates
from pasta.data.atlas_keys import ATLAS
from pasta.data.tokenizers import counting_tokenizer
from pasta.engine import Engine, EngineConfig, LoadedModel
from pasta.errors import UserError
from pasta.lang import CONTROL_TOKENS, Codec, CodecError, annotated_ids, plain_ids
from pasta.markdown import markdown
from pasta.stages.records import Record
from pasta.statistics import geometric_mean

WORDS = "words"
_THREAD_BINS = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 1 << 30))


def encode(codec: Codec, document: Recorded) -> Entry:
    """Raises CodecError if the tokenizer cannot carry it."""
    return Entry(
        document.key,
        codec.encode_prompt(document.messages),
        plain_ids(codec, document.document),
        annotated_ids(codec, document.document),
        document.source,
    )


def replay_engine(loaded: LoadedModel, entries: Iterable[Entry]) -> Engine:
    """An engine with a slot for the longest of the entries."""
    slot_tokens = slot_for(max(entry.num_tokens for entry in entries))
    return Engine(loaded, EngineConfig(num_slots=1, slot_tokens=slot_tokens, reuse_prefixes=False))


def measure(part: MeasuredPart[str], entries: Sequence[Entry], loaded: LoadedModel, repeats: int) -> None:
    """Replay the missing entries, ``repeats`` timed runs of each; the shortest one warms the engine up."""
    engine = replay_engine(loaded, entries)
    shortest = min(entries, key=lambda entry: len(entry.sequential))
    replay_pair(engine, shortest, repeats=1)
    for entry in entries:
        if entry.key in part.missing:
            record = replay_pair(engine, entry, repeats=repeats)
            detail = f"realised {record['realised']:.2f}x of {record['theoretical']:.2f}x"
            part.add(entry.key, record | ({"source": entry.source} if entry.source else {}), detail)


# -- real answers ----------------------------------------------------------------------------------------


class DocumentReplay:
    """Replays real answers, whose tokens a tokenizer counts, in the order given.

    ``tokenizer`` is ``words``, ``atlas``, a directory or a Hub name. Estimates are counted anew with it, but for those
    of the atlas' own. What has ``longest`` tokens or more (prompt and annotated answer) is left out. ``vocabulary`` is
    the number of the model's tokens. Raises UserError if the tokenizer makes more of them, or nothing can be replayed.
    """

    def __init__(self, documents: Sequence[Recorded], tokenizer: str, longest: int, vocabulary: int) -> None:
        self.tokenizer: Any = counting_tokenizer(tokenizer)
        codec = Codec(self.tokenizer)
        self.entries: list[Entry] = []
        self.skipped: dict[str, str] = {}
        for document in documents:
            try:
                counted = document
                if tokenizer != ATLAS:
                    estimated = with_estimates(document.document, token_counter(codec))
                    counted = replace(document, document=estimated)
                entry = encode(codec, counted)
            except CodecError as error:
                self.skipped[document.key] = str(error)
                continue
            if entry.num_tokens >= longest:
                self.skipped[document.key] = f"{entry.num_tokens} tokens, expected fewer than {longest}"
            else:
                self.entries.append(entry)
        # All words are known by now. Control tokens get rows of their own, as in training.
        tokens = codec.grammar.vocab_size
        self.vocabulary = max(vocabulary, tokens)
        if self.vocabulary > vocabulary + len(CONTROL_TOKENS):
            hint = f"fewer documents have fewer words, or give --tokenizer {ATLAS} or a directory"
            raise UserError(
                f"--tokenizer {tokenizer}: {tokens} tokens, but the model has {vocabulary}; "
                + (hint if tokenizer == WORDS else "expected the tokenizer of a model of this shape")
            )
        if not self.entries:
            raise _none_replayed(len(documents), self.skipped.values())

    def run(self, part: MeasuredPart[str], loaded: LoadedModel, repeats: int) -> None:
        """Measure the missing documents; those left out are recorded with the reason."""
        for key, reason in self.skipped.items():
            if key in part.missing:
                part.add(key, {"skipped": reason})
        measure(part, self.entries, loaded, repeats)


def document_identity(path: Path, tokenizer: str) -> Record:
    """The inputs that records of replayed documents depend on: the content of the files, and the tokenizer."""
    digest = hashlib.sha256()
    for file in document_files(path):
        digest.update(file.read_bytes())
    is_directory = Path(tokenizer).is_dir()
    return {
        "documents": digest.hexdigest()[:16],
        "tokenizer": model_fingerprint(Path(tokenizer)) if is_directory else tokenizer,
    }


def document_report(records: Sequence[Record], name: str, label: str, tokenizer: str) -> Found:
    """Metrics over all documents and over those with chunks; tables by source and by number of threads.

    Raises UserError if all of them were left out.
    """
    measured = [record for record in records if "skipped" not in record]
    if not measured:
        raise _none_replayed(len(records), (record["skipped"] for record in records))
    annotated = [record for record in measured if record["lanes"]["threads"] > 1]
    metrics = replay_metrics(measured, name, f"{label}, all documents")
    if annotated:
        metrics += replay_metrics(annotated, f"{name}.annotated", f"{label}, documents with chunks")
    metrics.append(
        Metric(
            f"replay.skipped.{name}",
            f"documents left out, replay on {label}",
            len(records) - len(measured),
            count=len(records),
            note="too long for the cache, or for the tokenizer",
        )
    )
    threads = {
        _bin_name(low, high): [r for r in measured if low <= r["lanes"]["threads"] <= high]
        for low, high in _THREAD_BINS
    }
    sources = {
        source: [record for record in measured if record.get("source", "") == source]
        for source in sorted({record.get("source", "") for record in measured})
    }
    counted = f"tokens are {tokenizer}"
    tables = {f"Replay by number of threads, {label} ({counted})": _table("threads", threads)}
    if len(sources) > 1:
        tables[f"Replay by source, {label} ({counted})"] = _table("source", sources)
    return metrics, tables


def _none_replayed(count: int, reasons: Iterable[str]) -> UserError:
    return UserError(f"--documents: none of {count} can be replayed ({next(iter(reasons))})")


def _table(what: str, groups: Mapping[str, Sequence[Record]]) -> str:
    rows = [
        [
            name,
            len(records),
            f"{fmean(record['sequential']['tokens'] for record in records):.0f}",
            f"{fmean(record['lanes']['threads'] for record in records):.1f}",
            f"{_mean(records, 'theoretical'):.2f}",
            f"{_mean(records, 'realised'):.2f}",
            f"{geometric_mean([record['realised'] / record['theoretical'] for record in records]):.3f}",
        ]
        for name, records in groups.items()
        if records
    ]
    return markdown(
        [what, "documents", "tokens", "threads", "theoretical", "realised", "realised ÷ theoretical"], rows
    )


def _mean(records: Iterable[Record], key: str) -> float:
    return geometric_mean([record[key] for record in records])


def _bin_name(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}" if high < 1 << 30 else f"{low} and more"
