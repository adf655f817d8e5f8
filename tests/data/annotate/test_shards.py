"""A shard is finished whole or not at all, and what was paid for is never asked for again."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pasta.cli.records import parse_record
from pasta.data.annotate.annotator import (
    Deliver,
    FreeAnnotator,
    Proposal,
    TeacherUsage,
    propose_plain,
    propose_truth,
)
from pasta.data.annotate.config import AnnotationSections
from pasta.data.annotate.finished import ShardResult, finished_shard
from pasta.data.annotate.shards import annotate_shard
from pasta.data.annotate.summary import logged, summarise_annotations, summary_text
from pasta.data.annotate.syntactic import SyntacticSection, propose_syntactic
from pasta.data.annotate.teacher import TeacherSection
from pasta.data.annotate.validator import ChecksSection, Validator
from pasta.data.dataset import data_files
from pasta.data.endpoint import EndpointSection
from pasta.data.instructions import Instruction
from pasta.data.skeletons import PROMPTED
from pasta.data.sources import SourceSection, plan_shards
from pasta.errors import UserError
from pasta.lang import Codec
from pasta.stages.records import RecordFile
from pasta.stages.stage import Stage, write_manifest
from tests.support.tokenizers import byte_level

ITEMS = "\n".join(
    f"- Drink {n}: {'it is made of leaves or beans, and it is served hot. ' * 3}" for n in range(4)
)
LINES = [
    json.dumps({"instruction": "Name drinks.", "output": f"Drinks:\n{ITEMS}"}),
    "not json",
    json.dumps({"instruction": "What is tea?", "output": "A drink."}),
    json.dumps({"id": "bad", "instruction": "What is tea?", "output": "Another drink."}),
]
SYNTACTIC = FreeAnnotator(lambda record: propose_syntactic(record, SyntacticSection()))


class Costly:
    """Annotates as it is told; fails after ``limit`` proposals."""

    is_costly = True

    def __init__(self, limit: int | None = None, answers: dict[str, str] | None = None) -> None:
        self.asked: list[str] = []
        self._limit = limit
        self._answers = answers or {}

    def annotate(
        self, records: Sequence[Instruction], deliver: Deliver, journal: RecordFile | None = None
    ) -> None:
        for record in records:
            if len(self.asked) == self._limit:
                raise UserError("the endpoint is gone")
            self.asked.append(record.answer)
            deliver(
                record,
                Proposal(self._answers.get(record.answer, record.answer), usage=TeacherUsage(1, 10, 5)),
            )


@pytest.fixture
def validator() -> Validator:
    return Validator(ChecksSection(), Codec(byte_level()))


@pytest.fixture
def source(tmp_path: Path) -> SourceSection:
    (tmp_path / "data.jsonl").write_text("\n".join(LINES) + "\n")
    return SourceSection(str(tmp_path / "data.jsonl"))


def annotate(source: SourceSection, annotator: Any, validator: Validator, directory: Path) -> ShardResult:
    directory.mkdir(exist_ok=True)
    return annotate_shard(plan_shards(source, 10)[0], source, annotator, validator, directory)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_go_to_one_file_and_rejects_to_another(
    source: SourceSection, validator: Validator, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = annotate(source, Costly(answers={"Another drink.": "Another trick."}), validator, out)
    assert (result.num_records, result.num_annotated, result.num_plain) == (4, 0, 2)
    assert result.rejected == {"broken record": 1, "differs": 1}
    assert result.broken == [f"{source.path}:2: not JSON: Expecting value at column 1"]
    broken, rejected = lines(out / "rejects-00000.jsonl")
    assert broken == {
        "source": f"{source.path}:2",
        "reason": "broken record",
        "detail": "not JSON: Expecting value at column 1",
        "raw": "not json",
    }
    assert (rejected["id"], rejected["answer"], rejected["annotated"]) == (
        "bad",
        "Another drink.",
        "Another trick.",
    )
    assert not list(out.glob("journal-*"))


def test_what_is_kept_is_what_pasta_check_reads(
    source: SourceSection, validator: Validator, tmp_path: Path
) -> None:
    result = annotate(source, SYNTACTIC, validator, tmp_path / "out")
    assert (result.num_annotated, result.num_plain) == (1, 2)
    first, *_ = (tmp_path / "out" / "annotated-00000.jsonl").read_bytes().splitlines()
    record = parse_record(first)
    assert record.prompt == "Name drinks."
    values = json.loads(first)
    assert values["figures"]["threads"] == 1 + len([*record.document.chunks()]) == 5
    assert values["source"] == f"{source.path}:1"


def test_one_record_may_become_several(source: SourceSection, validator: Validator, tmp_path: Path) -> None:
    sections = AnnotationSections(source, "sot")
    (shard,) = plan_shards(source, 10)
    (tmp_path / "out").mkdir()
    result = annotate_shard(
        shard, source, FreeAnnotator(propose_plain), validator, tmp_path / "out", rewrite=sections.rewrite
    )
    # Five requests for a list of four items, two each for the others; the broken line stays one.
    assert (result.num_records, result.num_annotated, result.num_plain) == (10, 0, 9)
    kept = lines(tmp_path / "out" / "annotated-00000.jsonl")
    assert [line["id"].rpartition("/")[2] for line in kept[:5]] == ["skeleton", "1", "2", "3", "4"]
    assert "".join(line["answer"] for line in kept[1:5]) == f"Drinks:\n{ITEMS}"
    assert kept[-1]["messages"] == [{"role": "user", "content": "What is tea?"}]


def test_words_of_skeletons_are_for_skeletons_alone() -> None:
    with pytest.raises(ValueError, match="skeletons: has no effect without annotator: sot"):
        AnnotationSections(SourceSection("a.jsonl"), "syntactic", skeletons=PROMPTED)


def test_a_finished_shard_is_not_done_again(
    source: SourceSection, validator: Validator, tmp_path: Path
) -> None:
    first = annotate(source, Costly(), validator, tmp_path / "out")
    again = Costly()
    assert annotate(source, again, validator, tmp_path / "out") == first
    assert again.asked == []


def test_proposals_outlive_an_annotator_that_fails(
    source: SourceSection, validator: Validator, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="the endpoint is gone"):
        annotate(source, Costly(limit=2), validator, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["journal-00000.jsonl"]
    again = Costly()
    result = annotate(source, again, validator, tmp_path / "out")
    assert again.asked == ["Another drink."]
    assert result.usage == TeacherUsage(3, 30, 15)


def test_half_a_line_in_a_journal_is_asked_for_again(
    source: SourceSection, validator: Validator, tmp_path: Path
) -> None:
    with pytest.raises(UserError):
        annotate(source, Costly(limit=2), validator, tmp_path / "out")
    journal = tmp_path / "out" / "journal-00000.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    again = Costly()
    annotate(source, again, validator, tmp_path / "out")
    assert again.asked == ["A drink.", "Another drink."]


def test_files_without_their_last_word_are_no_finished_shard(
    source: SourceSection, validator: Validator, tmp_path: Path
) -> None:
    annotate(source, Costly(), validator, tmp_path / "out")
    (tmp_path / "out" / "shard-00000.json").unlink()
    assert finished_shard(tmp_path / "out", 0) is None
    again = Costly()
    annotate(source, again, validator, tmp_path / "out")
    assert len(again.asked) == 3


def test_the_truth_about_the_atlas(tmp_path: Path) -> None:
    validator = Validator(ChecksSection(min_speedup=0.0), Codec(byte_level()))
    source = SourceSection("atlas", records=20, seed=1)
    out = tmp_path / "out"
    out.mkdir()
    result = annotate_shard(plan_shards(source, 20)[0], source, FreeAnnotator(propose_truth), validator, out)
    assert result.rejected == {}
    assert result.num_annotated >= 5


def test_the_truth_is_about_the_atlas_alone(
    source: SourceSection, validator: Validator, tmp_path: Path
) -> None:
    result = annotate(source, FreeAnnotator(propose_truth), validator, tmp_path / "out")
    assert result.rejected == {"broken record": 1, "no truth": 3}


def test_unannotated_answers_are_left_out_if_asked(source: SourceSection, tmp_path: Path) -> None:
    validator = Validator(ChecksSection(keep_unannotated=False), Codec(byte_level()))
    result = annotate(source, SYNTACTIC, validator, tmp_path / "out")
    assert result.rejected == {"broken record": 1, "no chunks": 2}


def test_the_summary_counts_all_of_it(source: SourceSection, validator: Validator, tmp_path: Path) -> None:
    out = tmp_path / "out"
    annotate(source, SYNTACTIC, validator, out)
    costly = annotate(source, Costly(), validator, tmp_path / "other")
    result = finished_shard(out, 0)
    assert result is not None
    endpoint = EndpointSection("http://localhost", "m", price_read=1.0, price_written=2.0)
    summary = summarise_annotations(out, [result, costly], TeacherSection(endpoint))
    assert (summary["kept"], summary["annotated"], summary["rejected"]) == (3, 1, 2)
    assert summary["threads_an_annotated_answer"]["median"] == 5
    assert summary["speedup_of_annotated"] > 1
    assert sum(summary["speedup_distribution"].values()) == 3
    assert summary["usage"]["cost"] == pytest.approx((30 * 1.0 + 15 * 2.0) / 1e6)
    text = summary_text(summary)
    assert f"broken        {source.path}:2: not JSON" in text
    assert "2 × broken record" in text
    assert logged(summary)["annotate/rejected_by_reason/broken record"] == 2


def test_a_run_that_keeps_nothing_says_why_and_where_the_rest_of_it_stands(
    source: SourceSection, validator: Validator, tmp_path: Path
) -> None:
    """Its output never appears: what an endpoint answered lies in a hidden directory."""
    out = tmp_path / "out"
    result = annotate(source, FreeAnnotator(propose_truth), validator, out)
    assert [*out.glob("rejects-*.jsonl")]
    why = "none of 4 records could be kept: no truth 3, broken record 1"
    where = re.escape(f"{out}/rejects-*.jsonl holds why; --restart annotates them again")
    with pytest.raises(UserError, match=f"^{why}; {where}$"):
        summarise_annotations(out, [result])


def test_a_stage_that_was_copied_without_a_shard_is_not_trained_on(
    source: SourceSection, validator: Validator, tmp_path: Path
) -> None:
    """The model learned from what was there, without a word."""
    out = tmp_path / "out"
    (shard,) = plan_shards(source, 100)
    for number in range(3):
        annotate_shard(replace(shard, index=number), source, SYNTACTIC, validator, out)
    write_manifest(out, Stage("annotate", {}, {}).to_manifest({"kept": 9}, "v1"))
    files = data_files(out)
    assert len(files) == 3
    files[0].write_bytes(b"".join(files[0].read_bytes().splitlines(keepends=True)[1:]))
    assert data_files(out) == files  # a line that somebody has taken out
    for file in (files[2], files[1]):  # the last one, and one before it
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(UserError, match=r"^data\.source: .* has shards of 6 of the 9 answers"):
            data_files(out)
        file.write_bytes(content)
