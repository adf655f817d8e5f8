"""Replays real answers as threads, and has llama.cpp decode as many tokens one after another."""

import dataclasses

from pasta.benchmark.documents import Entry, read_documents, sample_documents
from pasta.benchmark.peers.comparison import ShapeComparison
from pasta.benchmark.peers.decoders import Chosen
from pasta.benchmark.peers.engine import Ours
from pasta.benchmark.replay import WORDS, DocumentReplay, document_identity, replay_engine
from pasta.benchmark.speed import replay_pair
from pasta.engine import Engine
from pasta.lang import Codec
from pasta.stages.records import Record


def measure_replay(comparison: ShapeComparison) -> list[Record]:
    """One record for each document that is drawn: seconds of each decoder, prompt included, and the answer's tokens
    without its tags.

    Tokens are words, as in ``jobs.benchmark replay``.
    """
    settings, weights = comparison.settings, comparison.weights
    assert settings.documents is not None
    documents = sample_documents(
        read_documents(settings.documents), settings.replay_prompts, settings.replay_seed
    )
    counted = DocumentReplay(documents, WORDS, settings.longest, weights.config.vocab_size)
    identity = document_identity(settings.documents, WORDS) | {"longest": settings.longest}
    entries = {entry.key: entry for entry in counted.entries}
    part = comparison.part("replay", identity, entries, "documents")
    if not part.missing:
        return part.records
    shortest = min(counted.entries, key=lambda entry: entry.num_tokens)
    codec = Codec(counted.tokenizer)
    with comparison.decoders(comparison.narrow) as chosen:
        engines: dict[str, Engine] = {}
        for name, each in chosen.items():
            if isinstance(each.decoder, Ours):
                loaded = dataclasses.replace(each.decoder.loaded, tokenizer=counted.tokenizer, codec=codec)
                engines[name] = replay_engine(loaded, counted.entries)
        _measure(shortest, chosen, engines)
        for key in part.missing:
            record = _measure(entries[key], chosen, engines)
            part.add(key, record, f"{record['tokens']} tokens")
    return part.records


def _measure(entry: Entry, chosen: dict[str, Chosen], engines: dict[str, Engine]) -> Record:
    record: Record = {"tokens": len(entry.sequential), "seconds": {}, "threads": 1}
    for name, each in chosen.items():
        decoder = each.use()
        if name in engines:
            pair = replay_pair(engines[name], entry, repeats=1)
            (record["seconds"][name],) = pair["sequential"]["seconds"]
            (record["seconds"][f"{name}, threads"],) = pair["lanes"]["seconds"]
            record |= {key: pair["lanes"][key] for key in ("threads", "critical_path")}
        else:
            timing = decoder.decode(entry.prompt, len(entry.sequential))
            record["seconds"][name] = timing.first_s + timing.seconds
    return record
