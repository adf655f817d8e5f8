"""Replays real answers as threads, and has llama.cpp decode as many tokens one after another."""

import dataclasses
import time

from pasta.benchmark.documents import read_documents, sample_documents
from pasta.benchmark.peers.comparison import ShapeComparison
from pasta.benchmark.peers.decoders import Chosen
from pasta.benchmark.peers.engine import Ours
from pasta.benchmark.replay import WORDS, DocumentReplay, Entry, document_identity
from pasta.engine import Engine, EngineConfig
from pasta.engine.replay import replay
from pasta.lang import Codec
from pasta.stages.records import Record, RecordFile

_BUCKET = 256


def measure_replay(comparison: ShapeComparison) -> RecordFile:
    """One record a document: seconds of each decoder, prompt included, and the answer's tokens without its tags.

    Tokens are words, as in ``jobs.benchmark replay``.
    """
    settings, weights = comparison.settings, comparison.weights
    assert settings.documents is not None
    documents = sample_documents(
        read_documents(settings.documents), settings.replay_prompts, settings.replay_seed
    )
    counted = DocumentReplay(documents, WORDS, settings.longest, weights.config.vocab_size)
    identity = document_identity(settings.documents, WORDS) | {"longest": settings.longest}
    file = comparison.open("replay", identity)
    entries = [entry for entry in counted.entries if entry.key not in file]
    progress = comparison.kept.progress(
        f"replay, {weights.name}", len(counted.entries), "documents", len(counted.entries) - len(entries)
    )
    if not entries:
        return file
    longest = max(entry.num_tokens for entry in counted.entries)
    shortest = min(counted.entries, key=lambda entry: entry.num_tokens)
    codec = Codec(counted.tokenizer)
    with comparison.decoders(comparison.narrow) as chosen:
        engines: dict[str, Engine] = {}
        for name, each in chosen.items():
            if isinstance(each.decoder, Ours):
                loaded = dataclasses.replace(each.decoder.loaded, tokenizer=counted.tokenizer, codec=codec)
                slot_tokens = -(-(longest + 1) // _BUCKET) * _BUCKET
                config = EngineConfig(num_slots=1, slot_tokens=slot_tokens, reuse_prefixes=False)
                engines[name] = Engine(loaded, config)
        _measure(shortest, chosen, engines)
        for entry in entries:
            record = _measure(entry, chosen, engines)
            file.add(entry.key, record)
            progress.add(1, f"{record['tokens']} tokens")
    return file


def _measure(entry: Entry, chosen: dict[str, Chosen], engines: dict[str, Engine]) -> Record:
    record: Record = {"tokens": len(entry.sequential), "seconds": {}, "threads": 1}
    for name, each in chosen.items():
        decoder = each.use()
        if name in engines:
            begun = time.perf_counter()
            replay(engines[name], entry.prompt, entry.sequential, parallel=False)
            middle = time.perf_counter()
            lanes = replay(engines[name], entry.prompt, entry.annotated, parallel=True)
            record["seconds"][name] = middle - begun
            record["seconds"][f"{name}, threads"] = time.perf_counter() - middle
            record["threads"] = len(lanes.trace.threads)
            record["critical_path"] = lanes.critical_path
        else:
            timing = decoder.decode(entry.prompt, len(entry.sequential))
            record["seconds"][name] = timing.first_s + timing.seconds
    return record
