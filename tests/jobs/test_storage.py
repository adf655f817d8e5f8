"""Which paths of a configuration mean something on the nodes of a cluster."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from jobs import pipeline
from jobs.storage import check_paths, relocated
from pasta.config import load_config
from pasta.errors import UserError
from pasta.evaluation.config import EvaluateConfig
from pasta.training.preference_config import PreferenceConfig
from tests.support.paths import ROOT


@pytest.mark.parametrize("value", ["runs/data/x.jsonl", "./runs/data/x.jsonl", "../data/x.jsonl"])
def test_what_lies_beside_the_code_is_not_there(value):
    with pytest.raises(UserError, match="is not sent to the cluster"):
        check_paths({"source": value}, ROOT)


@pytest.mark.parametrize("value", ["answers.jsonl", "./answers.jsonl", "*.jsonl", "mine/*.jsonl"])
def test_files_in_the_root_are_not_sent_either(tmp_path, value):
    (tmp_path / "mine").mkdir()
    for name in ("answers.jsonl", "mine/answers.jsonl"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=f"^source: '{re.escape(value)}' is not sent to the cluster"):
        check_paths({"source": value}, tmp_path)


def test_a_word_may_be_the_name_of_a_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    check_paths({"name": "mine", "baseline": "mine"}, tmp_path)


def test_a_text_is_too_long_for_a_path(tmp_path):
    (tmp_path / "Read").mkdir()
    check_paths({"prompt": "Read/write, " + "and so on" * 99}, tmp_path)


@pytest.mark.parametrize("value", ["platform/pasta/data", "google/gemma-7b", "/mnt/data/x.jsonl", "atlas"])
def test_what_the_cluster_can_find_is_left_alone(value):
    config = {"data": [{"source": value}]}
    check_paths(config, ROOT)
    assert relocated(config, Path("/mnt/pasta")) == []


def test_a_method_whose_name_has_an_equals_sign_is_moved(tmp_path):
    methods = {"twin": {"kind": "sequential", "model": "atlas"}}
    methods["λ=2"] = {"kind": "pasta", "model": "runs/models/mine"}
    file = tmp_path / "evaluate.yaml"
    values = {"name": "mine", "output_dir": "/out", "baseline": "twin", "methods": methods}
    file.write_text(json.dumps({**values, "prompts": {"count": 2}}))
    config = load_config(file, EvaluateConfig)
    moved = load_config(file, EvaluateConfig, relocated(config, Path("/mnt/pasta")))
    assert moved.run_dir == Path("/mnt/pasta/runs/evaluate")
    assert moved.methods["λ=2"] == replace(config.methods["λ=2"], model="/mnt/pasta/runs/models/mine")
    assert moved.methods["twin"] == config.methods["twin"]


def test_a_path_with_a_character_that_breaks_lines_in_yaml_is_moved_as_it_is(tmp_path):
    file = tmp_path / "evaluate.yaml"
    methods = {"twin": {"kind": "sequential", "model": "runs/models/one\u2028λ"}}
    methods["mine"] = {"kind": "pasta", "model": "atlas"}
    values = {"name": "mine", "output_dir": "/out", "baseline": "twin", "methods": methods}
    file.write_text(json.dumps({**values, "prompts": {"count": 2}}))
    moved = relocated(load_config(file, EvaluateConfig), Path("/mnt/pasta"))
    found = load_config(file, EvaluateConfig, moved)
    assert found.methods["twin"].model == "/mnt/pasta/runs/models/one\u2028λ"


def test_a_key_that_a_pipeline_sets_in_a_stage_is_moved_and_leaves_the_others_as_they_are(tmp_path):
    keys = {"data.source": "runs/scores/mine", "data.pairs": 5}
    file = ROOT / "configs/preference/atlas.yaml"
    stages = {"prefer": {"job": "preference", "config": str(file), "set": keys}}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"name": "tiny", "output_dir": "runs/tiny", "stages": stages}))
    options = ["--config", str(recipe), "--set", "storage=/mnt/pasta"]
    config, steps = pipeline.read_recipe(pipeline.parser().parse_args(options))
    assert config.stages["prefer"].set == {**keys, "data.source": "/mnt/pasta/runs/scores/mine"}
    stage = pipeline.read_stages(config, steps)["prefer"]
    plain = load_config(file, PreferenceConfig)
    assert stage.data == replace(plain.data, source=Path("/mnt/pasta/runs/scores/mine"), pairs=5)
