"""The rule of positions of a model in training: set or inherited, in the data set's rows, and stored with the model."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk
from transformers import AutoTokenizer

from pasta.config import parse_config
from pasta.data.dataset import TOKENIZER_DIR
from pasta.data.linearise import make_example, without_syncs
from pasta.engine import Engine, EngineConfig, Request, load_model
from pasta.errors import UserError
from pasta.interpreter import linearise
from pasta.lang import Codec, parse, render
from pasta.lang.positions import SCHEMES, Positions, Scheme
from pasta.lang.tokenizer import stored_scheme
from pasta.training import preference
from pasta.training.config import ModelSection, SftConfig
from pasta.training.model import make_tokenizer, other_positions
from pasta.training.run import RunContext
from pasta.training.sft import prepare, train
from tests.support.tokenizers import byte_level
from tests.training.pair_runs import preference_config, preference_dict, save_tiny_model
from tests.training.runs import sft_dict


def config_with(directory: Path, **changes: dict[str, Any]) -> SftConfig:
    values = sft_dict(directory)
    for section, keys in changes.items():
        values[section] |= keys
    return parse_config(values, SftConfig, "tiny.yaml")


def model_of(directory: Path, scheme: str | None) -> Path:
    """A model directory that carries ``scheme`` as its files do, or none."""
    save_tiny_model(directory)
    path = directory / "tokenizer_config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | ({} if scheme is None else {"pasta_positions": scheme})))
    return directory


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_of_a_data_set_have_the_positions_of_its_model(tmp_path: Path, scheme: Scheme) -> None:
    config = config_with(tmp_path, model={"positions": scheme})
    prepared = prepare(config, tmp_path / "data")
    assert stored_scheme(AutoTokenizer.from_pretrained(prepared.path / TOKENIZER_DIR)) == scheme
    codec = Codec(byte_level(), positions=Positions(scheme))
    lines = [json.loads(line) for line in Path(config.data.source).read_text().splitlines()]
    examples = [
        make_example(codec, line["messages"], parse(line["annotated"]), "pasta") for line in lines[:56]
    ]
    rows = load_from_disk(str(prepared.path / "train"))
    placed = [place for row in rows for place in zip(row["input_ids"], row["position_ids"], strict=True)]
    assert sorted(placed) == sorted(
        place for each in examples for place in zip(each.input_ids, each.position_ids, strict=True)
    )


def test_another_rule_makes_another_data_set(tmp_path: Path) -> None:
    places = [
        prepare(config_with(tmp_path, model={"positions": scheme}), tmp_path / "data").path
        for scheme in (None, "predicted-in-tens", "fixed", "shared")
    ]
    assert places[0] == places[1]
    assert len(set(places)) == 3


@pytest.mark.slow
def test_a_trained_model_is_stored_and_decoded_under_its_rule(tmp_path: Path) -> None:
    config = config_with(tmp_path, model={"positions": "shared"}, optimisation={"max_steps": 1})
    prepared = prepare(config, tmp_path / "data")
    train(config, RunContext(prepared.path, tmp_path / "work", False, lambda metrics, checkpoint: None))
    loaded = load_model(config.output_dir, device="cpu", packed=False)
    assert loaded.codec.positions == Positions("shared")
    forced = [
        *loaded.codec.encode(parse('a<promise topic="x" tokens="90"/><async>b</async>c')),
        loaded.codec.eos_id,
    ]
    engine = Engine(loaded, EngineConfig(num_slots=1, slot_tokens=256, trace_forward=False))
    result = engine.generate(Request(prompt_ids=[5, 6, 7], forced=forced))
    assert list(result.response_ids) == forced
    rows = linearise(loaded.codec.grammar, [5, 6, 7], forced)
    last = rows.token_ids[: rows.token_ids.index(loaded.codec.control.close) + 1]
    assert max(rows.positions) == len(last) + 2  # <async>, b, </async>; the parent's c is beside <async>


def test_a_run_inherits_the_rule_of_the_model_that_it_starts_from(tmp_path: Path) -> None:
    start = model_of(tmp_path / "start", "fixed")
    section = ModelSection(init_from=str(start))
    assert stored_scheme(make_tokenizer(section)) == "fixed"
    assert other_positions(section) == ""
    byte_level().save_pretrained(tmp_path / "tokenizer")
    elsewhere = ModelSection(init_from=str(start), tokenizer=str(tmp_path / "tokenizer"))
    assert stored_scheme(make_tokenizer(elsewhere)) == "fixed"


@pytest.mark.parametrize(
    ("before", "own"), [("fixed", "shared"), ("fixed", "predicted-in-tens"), (None, "fixed")]
)
def test_a_run_that_gives_a_model_another_rule_says_so(
    tmp_path: Path, before: str | None, own: Scheme
) -> None:
    section = ModelSection(init_from=str(model_of(tmp_path / "start", before)), positions=own)
    assert stored_scheme(make_tokenizer(section)) == own
    assert other_positions(section) == (
        f"model.positions: {own} from now on; {tmp_path / 'start'} has {before or 'predicted-in-tens'}"
    )


def test_a_model_whose_rule_is_none_is_named(tmp_path: Path) -> None:
    start = model_of(tmp_path / "start", "sideways")
    with pytest.raises(
        UserError, match=rf"model.init_from: {start}: tokenizer: pasta_positions 'sideways', expected"
    ):
        make_tokenizer(ModelSection(init_from=str(start)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"model": {"positions": "half"}},
            "model.positions: expected 'predicted-in-tens', .* 'shared', got 'half'",
        ),
        (
            {"model": {"positions": "fixed"}, "data": {"mode": "sequential"}},
            "model.positions 'fixed': expected none; data.mode 'sequential' leaves positions as it is",
        ),
        ({"data": {"syncs": False, "mode": "sequential"}}, "syncs false: expected mode pasta or both"),
    ],
)
def test_a_setting_without_effect_is_refused(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        config_with(tmp_path, **changes)


@pytest.mark.parametrize(
    ("stored", "own", "expected"),
    [
        ("fixed", "shared", "model.positions 'shared': .* has 'fixed', and pairs compare its own answers"),
        ("predicted", None, "has positions 'predicted', whose estimates pairs do not hold"),
    ],
)
def test_pairs_are_trained_on_under_the_rule_that_they_were_written_with(
    tmp_path: Path, stored: str, own: str | None, expected: str
) -> None:
    values = preference_dict(tmp_path)
    model_of(tmp_path / "start", stored)
    values["model"]["positions"] = own
    with pytest.raises(UserError, match=expected):
        preference.prepare(preference_config(values), tmp_path / "data")


def test_a_reference_of_another_rule_is_refused(tmp_path: Path) -> None:
    values = preference_dict(tmp_path)
    values["objective"]["reference"] = str(model_of(tmp_path / "other", "shared"))
    with pytest.raises(
        UserError, match=r"objective.reference: .* has positions 'shared', .* 'predicted-in-tens'"
    ):
        preference.prepare(preference_config(values), tmp_path / "data")


def test_pairs_of_a_model_have_its_positions(tmp_path: Path) -> None:
    values = preference_dict(tmp_path)
    config = preference_config(values)
    default = preference.prepare(config, tmp_path / "data")
    model_of(tmp_path / "start", "shared")
    shared = preference.prepare(config, tmp_path / "data")
    rows = [load_from_disk(str(prepared.path / "train"))["chosen"] for prepared in (default, shared)]
    assert [row["input_ids"] for row in rows[0]] == [row["input_ids"] for row in rows[1]]
    assert max(map(max, (row["position_ids"] for row in rows[1]))) < max(
        map(max, (row["position_ids"] for row in rows[0]))
    )


def test_without_syncs_the_text_stays_and_nothing_waits(tmp_path: Path) -> None:
    text = 'a<promise topic="x" tokens="10"/><async>b<promise topic="y" tokens="10"/><async>c</async><sync/>d</async>'
    document = parse(f"{text}<sync/>e<sync/>")
    bare = without_syncs(document)
    assert render(bare) == render(document)
    assert bare == parse(f"{text.replace('<sync/>', '')}e")
    sync = Codec(byte_level()).control.sync
    counts = []
    for syncs in (True, False):
        prepared = prepare(config_with(tmp_path, data={"syncs": syncs}), tmp_path / "data")
        for split in ("train", "eval"):
            rows = load_from_disk(str(prepared.path / split))
            counts.append(sum(row.count(sync) for row in rows["input_ids"]))
    assert counts[0] > 0
    assert counts[1] > 0
    assert counts[2:] == [0, 0]
