"""Sources are cut into shards that hold every record once; what is broken keeps its place."""

import codecs
import itertools
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from pasta.data import opened
from pasta.data.atlas import FAMILIES
from pasta.data.atlas.corpus import atlas_answers
from pasta.data.instructions import Instruction
from pasta.data.sources import Broken, SourceSection, plan_shards, read_source_shard
from pasta.errors import UserError
from pasta.stages.stage import StageOutput

RECORDS = [{"instruction": f"Question {n}?", "output": f"Answer {n}."} for n in range(7)]
ANSWERS = [record["output"] for record in RECORDS]


def write_jsonl(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
    return path


def read(path: Path | str, size: int = 3, **options: Any) -> list[Instruction | Broken]:
    source = SourceSection(str(path), **options)
    return list(
        itertools.chain.from_iterable(read_source_shard(shard, source) for shard in plan_shards(source, size))
    )


def answers(records: list[Instruction | Broken]) -> list[str]:
    return [record.answer for record in records if isinstance(record, Instruction)]


def test_jsonl_in_shards(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    assert [shard.count for shard in plan_shards(SourceSection(str(path)), 3)] == [3, 3, 1]
    found = read(path)
    assert answers(found) == ANSWERS
    assert isinstance(found[6], Instruction)
    assert found[6].place == f"{path}:7"


def test_blank_lines_are_no_records_of_those_that_are_asked_for(tmp_path: Path) -> None:
    spaced = ["", "", *itertools.chain.from_iterable((record, "") for record in RECORDS)]
    path = write_jsonl(tmp_path / "a.jsonl", spaced)
    assert answers(read(path, records=5)) == ANSWERS[:5]
    assert answers(read(path, size=100, records=2)) == ANSWERS[:2]
    assert answers(read(path)) == ANSWERS


def test_broken_records_at_the_beginning_are_no_reason_to_refuse_the_others(tmp_path: Path) -> None:
    for size in (1, 2, 3, 100):
        found = read(write_jsonl(tmp_path / "a.jsonl", ["x", {"text": "y"}, *RECORDS]), size=size)
        assert [type(record) for record in found[:3]] == [Broken, Broken, Instruction]
        assert answers(found) == ANSWERS
    write_jsonl(tmp_path / "0.jsonl", ["x"])
    assert answers(read(tmp_path)) == ANSWERS


def test_a_json_array(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(RECORDS))
    assert answers(read(path)) == ANSWERS


def test_parquet_across_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path, row_group_size=2)
    found = read(path)
    assert answers(found) == ANSWERS
    assert isinstance(found[4], Instruction)
    assert found[4].place == f"{path}:row 5"


@pytest.mark.parametrize(
    ("name", "owner", "read_by"),
    [
        ("a.json", opened, "read_json"),
        ("a.parquet", pyarrow.parquet.ParquetFile, "read_row_group"),
        ("set", datasets, "load_from_disk"),
    ],
)
def test_a_file_is_not_parsed_anew_for_each_of_its_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, owner: Any, read_by: str
) -> None:
    """600 MB of JSON in shards of 200 records took hours."""
    path = tmp_path / name
    if name == "set":
        datasets.Dataset.from_list(RECORDS).save_to_disk(str(path))
    elif name == "a.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path)
    else:
        path.write_text(json.dumps(RECORDS))
    source = SourceSection(str(path))
    shards = plan_shards(source, 1)
    times, original = 0, getattr(owner, read_by)

    def counted(*given: Any, **options: Any) -> Any:
        nonlocal times
        times += 1
        return original(*given, **options)

    monkeypatch.setattr(owner, read_by, counted)
    assert answers([record for shard in shards for record in read_source_shard(shard, source)]) == ANSWERS
    assert times == 1


def test_a_file_that_has_changed_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for records in (RECORDS[:2], RECORDS[:4]):
        path.write_text(json.dumps(records))
        assert len(read(path)) == len(records)


def test_a_data_set_of_hugging_face_saved_to_disk(tmp_path: Path) -> None:
    both = datasets.DatasetDict({"train": datasets.Dataset.from_list(RECORDS)})
    both.save_to_disk(str(tmp_path / "set"))
    assert answers(read(tmp_path / "set")) == ANSWERS


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": datasets.Dataset.from_list(RECORDS)}).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(UserError, match="has no split 'test'; it has train"):
        read(tmp_path / "set", split="test")


def test_one_data_set_on_disk_has_no_splits_but_the_one_it_was(tmp_path: Path) -> None:
    records = datasets.Dataset.from_list(RECORDS)
    records.save_to_disk(str(tmp_path / "set"))
    with pytest.raises(UserError, match=r"data.source.split: .*set is one data set without splits; .*'test'"):
        read(tmp_path / "set", split="test")
    datasets.Dataset.from_list(RECORDS, split="test").save_to_disk(str(tmp_path / "test"))
    assert answers(read(tmp_path / "test", split="test")) == answers(read(tmp_path / "test")) == ANSWERS


def test_a_directory_that_only_looks_like_a_data_set_is_one_clear_line(tmp_path: Path) -> None:
    for name in ("state.json", "dataset_info.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match="no such data set could be loaded"):
        read(tmp_path)


def test_patterns_and_directories_are_read_in_order(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "b.jsonl", RECORDS[4:])
    write_jsonl(tmp_path / "a.jsonl", RECORDS[:4])
    assert answers(read(tmp_path)) == answers(read(tmp_path / "*.jsonl")) == ANSWERS


def test_of_a_finished_stage_the_annotated_answers_are_read_and_nothing_else(tmp_path: Path) -> None:
    output = StageOutput(tmp_path / "out", "annotate", {}, {})
    directory = output.start()
    write_jsonl(directory / "annotated-00000.jsonl", RECORDS)
    write_jsonl(directory / "rejects-00000.jsonl", RECORDS)
    (directory / "summary.json").write_text("{}")
    output.finish({}, "v1")
    assert answers(read(tmp_path / "out")) == ANSWERS


def annotated(directory: Path, *shards: int) -> Path:
    """A finished stage that has kept two answers in each of these shards."""
    output = StageOutput(directory, "annotate", {}, {})
    for number in shards:
        write_jsonl(output.start() / f"annotated-{number:05d}.jsonl", RECORDS[:2])
    output.finish({"kept": 2 * len(shards)}, "v1")
    return directory


def test_a_finished_stage_without_its_last_shard_is_refused(tmp_path: Path) -> None:
    """What was left of it was annotated, without a word."""
    stage = annotated(tmp_path / "out", 0, 1)
    (stage / "annotated-00001.jsonl").unlink()
    with pytest.raises(UserError, match=r"^data\.source\.path: .* has shards of 2 of the 4 answers"):
        read(stage)


def test_a_finished_stage_is_read_though_it_kept_nothing_of_a_shard(tmp_path: Path) -> None:
    """It was refused, and told to be made anew, which changes nothing."""
    assert len(read(annotated(tmp_path / "out", 0, 2))) == 4


def test_another_stage_s_directory_is_one_clear_line(tmp_path: Path) -> None:
    output = StageOutput(tmp_path / "out", "sample", {}, {})
    write_jsonl(output.start() / "samples-00000.jsonl", RECORDS)
    output.finish({}, "v1")
    with pytest.raises(UserError, match="holds stage 'sample', expected 'annotate'"):
        read(tmp_path / "out")


def test_the_number_of_records_is_bounded(tmp_path: Path) -> None:
    assert answers(read(write_jsonl(tmp_path / "a.jsonl", RECORDS), records=5)) == ANSWERS[:5]


def test_the_atlas_is_made_alike_whoever_asks() -> None:
    first, second = (answers(read("atlas", records=7, seed=3)) for _ in range(2))
    assert first == second
    assert len(set(first)) > 3


def test_the_atlas_gives_the_prompts_that_training_makes_of_the_same_seed() -> None:
    mixture = {"countdown": 4.0}
    made = [
        messages
        for messages, _ in atlas_answers(3 * 10_000, "train", 40, mixture=mixture, echo=0.3, talk=0.3)
    ]
    found = read("atlas", 5000, records=40, seed=3, mixture=mixture, echo=0.3, talk=0.3)
    assert [list(record.messages) for record in found if isinstance(record, Instruction)] == made
    assert any(messages[0]["content"].startswith("Copy: ") for messages in made)


def test_only_the_atlas_has_families() -> None:
    with pytest.raises(ValueError, match="only the atlas has families"):
        SourceSection("data.jsonl", mixture={"countdown": 2.0})


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ({"countdown": 2.0, "planet": 2.0}, "mixture: unknown family 'planet'; expected some of profiles, "),
        (dict.fromkeys(FAMILIES, 0.0), "mixture: every family has weight 0"),
    ],
)
def test_a_mixture_that_cannot_be_drawn_from_is_refused_before_anything_is_read(
    mixture: dict[str, float], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        SourceSection("atlas", records=5, mixture=mixture)


def test_a_broken_line_keeps_its_place_and_the_others_are_read(tmp_path: Path) -> None:
    lines = [RECORDS[0], '{"instruction": "Q', "", RECORDS[1], {"text": 1}, RECORDS[2]]
    path = write_jsonl(tmp_path / "a.jsonl", lines)
    found = read(path)
    assert answers(found) == ANSWERS[:3]
    broken = [record for record in found if isinstance(record, Broken)]
    assert [record.place for record in broken] == [f"{path}:2", f"{path}:5"]
    assert broken[0].reason.startswith("not JSON: ")
    assert broken[0].raw == '{"instruction": "Q'


def test_bytes_that_are_no_text_are_broken(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    path.write_bytes(path.read_bytes() + b'{"instruction": "\xff"}\n')
    found = read(path)[-1]
    assert isinstance(found, Broken)
    assert found.reason == "byte 18 is not UTF-8"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("gone.jsonl", None, "gone.jsonl: no such file; expected atlas"),
        ("a.csv", "a,b", "expected a name in .jsonl"),
        ("a.jsonl", "", "holds no records"),
        ("a.jsonl", "\n \n\n", "holds no records"),
        ("a.json", "", "holds no records"),
        ("a.json", "[]", "holds no records"),
        ("a.jsonl", "x\n", r"a.jsonl:1: not JSON: [^(]*$"),
        ("a.jsonl", "x\ny\n", r"a.jsonl:1: not JSON: .* \(nor could any of the first 2 records be read\)"),
        ("a.json", "{", "not JSON"),
        ("a.json", "{}", "expected an array of records"),
        ("a.parquet", "x", r"a.parquet: cannot be read as parquet \(.*\); expected a whole parquet file"),
    ],
)
def test_a_source_that_cannot_be_used_is_one_clear_line(
    tmp_path: Path, name: str, content: str | None, expected: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=expected) as caught:
        read(tmp_path / name)
    assert str(caught.value).startswith("data.source.path: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"split": "test"}, "data.source.split 'test': has no effect with files"),
        ({"subset": "x"}, "data.source.subset 'x': has no effect with files"),
        ({"revision": "main"}, "data.source.revision 'main': has no effect with files"),
    ],
)
def test_files_have_no_splits_subsets_and_revisions(
    tmp_path: Path, selection: dict[str, str], expected: str
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", RECORDS)
    with pytest.raises(UserError, match=expected):
        read(path, **selection)


def test_a_data_set_on_disk_has_no_subsets(tmp_path: Path) -> None:
    datasets.Dataset.from_list(RECORDS).save_to_disk(tmp_path / "saved")
    with pytest.raises(UserError, match=r"data.source.subset 'x': has no effect with a data set on disk"):
        read(tmp_path / "saved", subset="x")


def write_parquet(path: Path, columns: dict[str, Any]) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="none", use_dictionary=False)
    return path


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"text": ["a"]},
            "row 1: expected messages, conversations, or instruction and output; keys here: 'text'",
        ),
        ({"instruction": ["a"]}, "row 1: no output: expected its output"),
        ({"instruction": ["a"], "output": [1]}, "row 1: output: expected text, got int"),
        ({"instruction": [b"a"], "output": ["b"]}, "row 1: instruction: expected text, got bytes"),
        ({"messages": ["a"]}, "row 1: messages: expected a list of objects with 'role' and 'content'"),
        ({f"column {n}": ["a"] for n in range(1000)}, "; keys here: 'column 0', 'column 1', "),
        ({"instruction": [], "output": []}, "holds no records"),
    ],
)
def test_a_table_of_other_columns_is_one_clear_line(
    tmp_path: Path, columns: dict[str, Any], expected: str
) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns)
    with pytest.raises(UserError) as caught:
        read(path)
    said = str(caught.value)
    assert said.startswith(f"data.source.path: {path}:")
    assert expected in said
    assert len(said) < 300 + len(str(path))


@pytest.mark.parametrize("spoil", ["half", "values", "time"])
def test_a_table_that_is_damaged_is_one_clear_line(tmp_path: Path, spoil: str) -> None:
    columns = {"instruction": ["Which river? " * 40] * 40, "output": ["The Nile, or the Amazon. " * 40] * 40}
    far: Any = {"when": pyarrow.array([2**50] * 40, pyarrow.timestamp("s"))} if spoil == "time" else {}
    path = write_parquet(tmp_path / "a.parquet", columns | far)
    content = path.read_bytes()
    if spoil == "half":
        path.write_bytes(content[: len(content) // 2])
    elif spoil == "values":
        path.write_bytes(content[:4] + b"\xff" * 2000 + content[2004:])
    with pytest.raises(
        UserError, match=r"cannot be read as parquet \(.*\); expected a whole parquet file"
    ) as caught:
        read(path)
    assert str(caught.value).startswith(f"data.source.path: {path}: ")
    assert "\n" not in str(caught.value)


def test_files_without_records_are_left_out_and_the_first_of_them_is_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "b.jsonl", RECORDS)
    said: list[str] = []
    source = SourceSection(str(tmp_path))
    plan_shards(source, 3, said.append)
    assert said == []
    (tmp_path / "a.json").write_text(" \n")
    assert answers(read(tmp_path)) == ANSWERS
    plan_shards(source, 3, said.append)
    (tmp_path / "c.jsonl").write_text("\n")
    (tmp_path / "d.json").write_text("[]")
    plan_shards(source, 3, said.append)
    for name in ("e.jsonl", "f.json", "g.ndjson"):  # as some editors save an empty file
        (tmp_path / name).write_bytes(codecs.BOM_UTF8 + b"\n" * (name == "g.ndjson"))
    plan_shards(source, 3, said.append)
    line = f"data.source.path: {tmp_path / 'a.json'}: holds no records"
    others = [f"{line} (nor do {count} other files); left out" for count in (2, 5)]
    assert said == [f"{line}; left out", *others]


def test_files_of_a_directory_that_are_not_read_are_said(tmp_path: Path) -> None:
    for folder in ("more/deep", ".cache"):
        (tmp_path / folder).mkdir(parents=True)
    write_jsonl(tmp_path / "a.jsonl", RECORDS)
    (tmp_path / "README.md").touch()
    (tmp_path / ".cache/x.json").touch()
    said: list[str] = []
    plan_shards(SourceSection(str(tmp_path)), 3, said.append)
    assert said == []
    write_jsonl(tmp_path / "more/deep/b.jsonl", RECORDS)
    (tmp_path / "c.jsonl.gz").touch()
    plan_shards(SourceSection(str(tmp_path)), 3, said.append)
    (line,) = said
    assert line.startswith(f"data.source.path: {tmp_path / 'c.jsonl.gz'}: not read (2 of that kind): of a")
    assert "DIRECTORY/**/*.jsonl" in line


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_byte_order_mark_alone_is_no_record(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(codecs.BOM_UTF8)
    with pytest.raises(UserError, match=rf"{name}: holds no records"):
        read(tmp_path / name)
    if name == "a.jsonl":
        lines = "\n".join(json.dumps(record) for record in RECORDS)
        (tmp_path / name).write_text(f"\ufeff\n{lines}")
        assert answers(read(tmp_path / name, records=5)) == ANSWERS[:5]


def test_an_empty_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no .jsonl, .json or .parquet file there"):
        read(tmp_path)


def test_an_unknown_hub_data_set_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"source.path: pasta/none: no such data set could be loaded"
    ) as caught:
        read("pasta/none")
    assert "\n" not in str(caught.value)
