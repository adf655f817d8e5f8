"""Real answers replayed: what counts as a token, what is left out, what is said."""

import pytest

from pasta.benchmark.documents import Recorded
from pasta.benchmark.measurement import MeasuredPart
from pasta.benchmark.replay import DocumentReplay, document_identity, document_report
from pasta.engine import random_model
from pasta.errors import UserError
from pasta.lang import Codec, parse, render
from pasta.stages.records import RecordFile
from tests.support.models import CONFIGS
from tests.support.tokenizers import byte_level

ANNOTATED = (
    'Two drinks:<promise topic="tea" tokens="500"/><async> Tea is made of dried leaves.</async>'
    '<promise topic="coffee" tokens="500"/><async> Coffee, of roasted beans!</async><sync/> Both are hot.'
)
PLAIN = "There is nothing to split here."


def recorded(annotated, key, source="a.json"):
    return Recorded([{"role": "user", "content": "Drinks?"}], parse(annotated), key, source)


BOTH = [recorded(ANNOTATED, "f:1"), recorded(PLAIN, "f:2", "b.json")]


def replayed(documents, tmp_path, **options):
    """The records that a replay on a tiny model leaves."""
    config = CONFIGS["llama"]
    counted = DocumentReplay(documents, "words", options.get("longest", 4096), config.vocab_size)
    file = RecordFile(tmp_path / "records.jsonl", {})
    loaded = random_model(config, counted.tokenizer, device="cpu")
    keys = [document.key for document in documents]
    counted.run(MeasuredPart(file, keys, "documents", "replay", say=print), loaded, 1)
    return file.records


def test_words_and_punctuation_marks_are_tokens_and_estimates_are_counted_in_them():
    counted = DocumentReplay(BOTH[:1], "words", 4096, 512)
    codec, entry = Codec(counted.tokenizer), counted.entries[0]
    #  Two drinks : + Tea is made of dried leaves . + Coffee , of roasted beans ! + Both are hot . + the end
    assert len(entry.sequential) == 3 + 7 + 6 + 4 + 1
    document = codec.decode(entry.annotated[:-1])
    assert render(document) == render(BOTH[0].document)
    assert [chunk.tokens for chunk in document.chunks()] == [10, 10]


def test_a_replay_takes_every_token_and_the_critical_path_of_the_threads(tmp_path):
    records = replayed(BOTH, tmp_path)
    annotated, plain = records["f:1"], records["f:2"]
    assert annotated["sequential"]["tokens"] == 21
    assert annotated["lanes"]["threads"] == 3
    assert annotated["lanes"]["critical_path"] < annotated["lanes"]["tokens"]
    assert plain["theoretical"] == 1.0
    assert (annotated["source"], plain["source"]) == ("a.json", "b.json")


def test_what_was_replayed_is_not_replayed_again(tmp_path):
    before = replayed(BOTH[:1], tmp_path)["f:1"]
    assert replayed(BOTH, tmp_path)["f:1"] == before


def test_what_is_too_long_is_left_out_and_counted(tmp_path):
    records = [*replayed(BOTH, tmp_path, longest=30).values()]
    assert "tokens, expected fewer than 30" in records[0]["skipped"]
    metrics, _ = document_report(records, "tiny", "a tiny model", "words")
    values = {metric.key: metric for metric in metrics}
    assert values["replay.skipped.tiny"].value == 1
    assert values["replay.theoretical.tiny"].count == 1
    assert "replay.realised.tiny.annotated" not in values


def test_documents_with_chunks_have_metrics_of_their_own(tmp_path):
    records = [*replayed(BOTH, tmp_path).values()]
    metrics, tables = document_report(records, "tiny", "a tiny model", "words")
    values = {metric.key: metric for metric in metrics}
    assert (values["replay.realised.tiny"].count, values["replay.realised.tiny.annotated"].count) == (2, 1)
    threads, sources = tables.values()
    assert [line.split()[1] for line in threads.splitlines()[2:]] == ["1", "2"]
    assert [line.split()[1] for line in sources.splitlines()[2:]] == ["a.json", "b.json"]


def test_more_words_than_the_model_has_tokens_are_refused():
    many = [recorded(" ".join(f"word{n}" for n in range(900)), "f:1")]
    with pytest.raises(
        UserError, match=r"--tokenizer words: 1\d\d\d tokens, but the model has 512; fewer doc"
    ):
        DocumentReplay(many, "words", 4096, 512)


def test_a_tokenizer_may_bring_its_control_tokens(tmp_path):
    byte_level().save_pretrained(tmp_path / "tokenizer")
    size = len(byte_level())
    counted = DocumentReplay(BOTH, str(tmp_path / "tokenizer"), 4096, size - 5)
    assert counted.vocabulary == size
    with pytest.raises(UserError, match="expected the tokenizer of a model of this shape"):
        DocumentReplay(BOTH, str(tmp_path / "tokenizer"), 4096, size - 6)


def test_nothing_to_replay_is_one_clear_line():
    with pytest.raises(UserError, match=r"--documents: none of 2 can be replayed \(\d+ tokens, expected few"):
        DocumentReplay(BOTH, "words", 5, 512)


def test_documents_that_an_earlier_run_left_out_are_nothing_to_report():
    """It drew others beside them, which it could replay."""
    with pytest.raises(
        UserError, match=r"^--documents: none of 2 can be replayed \(9 tokens, expected fewer than 8\)$"
    ):
        document_report([{"skipped": "9 tokens, expected fewer than 8"}] * 2, "tiny", "a tiny model", "words")


def test_records_belong_to_the_documents_content_and_the_tokenizer(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text("one")
    first = document_identity(path, "words")
    assert document_identity(path, "atlas") != first
    path.write_text("two")
    assert document_identity(path, "words")["documents"] != first["documents"]
