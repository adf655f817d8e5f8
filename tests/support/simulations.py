"""Answers to simulate, and costs that are easy to reckon with."""

import functools
from dataclasses import dataclass

from pasta.data.word_tokenizer import WordTokenizer
from pasta.lang import Chunk, Codec, Document, Sync, Text, annotated_ids, plain_ids
from pasta.simulation.cluster import Cluster, ClusterSection
from pasta.simulation.load import Replayed
from pasta.simulation.replica import ReplicaSizes
from pasta.simulation.script import Scripts
from tests.support.documents import random_document


@dataclass(frozen=True)
class Flat:
    """So many seconds a step, more with each lane, each token of a prompt and each cached token; ``among_s`` a step
    among several that run together, if they do."""

    step_s: float = 1.0
    lane_s: float = 0.0
    token_s: float = 0.0
    key_s: float = 0.0
    among_s: float | None = None

    def lanes_s(self, requests, lanes, cache_tokens):
        return self.step_s + self.lane_s * requests * lanes + self.key_s * requests * cache_tokens

    def together_s(self, requests, lanes, cache_tokens):
        return self.among_s

    def prefill_s(self, tokens, cache_tokens):
        return self.step_s + self.token_s * tokens

    def covers(self, requests, lanes, cache_tokens):
        return True


def words(count):
    return Text(" ".join(["word"] * count))


def drinks(first=8, second=8):
    """Two chunks and a conclusion."""
    return Document(
        (words(3), Chunk("tea", 10, (words(first),)), Chunk("milk", 10, (words(second),)), Sync(), words(4))
    )


def scripts_of(documents, prompt_tokens=7):
    """Both ways of each document."""
    codec = Codec(WordTokenizer())
    ids = [(plain_ids(codec, document), annotated_ids(codec, document)) for document in documents]
    return [Scripts.of(codec.grammar, prompt_tokens + n % 5, *each) for n, each in enumerate(ids)]


@functools.cache
def some_scripts(count=40):
    """Random documents, nested ones among them."""
    return tuple(scripts_of([random_document(seed, depth=3) for seed in range(count)]))


def cluster(scripts, arrivals=None, *, costs=None, sizes=None, placement="local", live=False, **section):
    """A cluster that serves ``scripts`` as they come (all at once unless told otherwise)."""
    return Cluster(
        ClusterSection(**{"hop_s": 0.0, **section}),
        sizes or ReplicaSizes(num_slots=4, slot_tokens=1024, prefill_chunk=4),
        costs or Flat(),
        scripts,
        arrivals or Replayed([0.0] * len(scripts)),
        placement=placement,
        live=live,
    )
