"""Engines that cannot run here are refused before Ray starts; those of another cluster's machines are not judged."""

import sys

import pytest
import torch
import yaml

from jobs import pipeline, rl
from jobs.cluster import check_engine
from pasta.engine.memory import weight_bytes
from pasta.engine.section import EngineSection
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.stages.workers import WorkersSection
from tests.jobs.test_pipeline import write_pipeline
from tests.rl.runs import rl_dict
from tests.support.models import save_misfit_heads
from tests.training.pair_runs import save_tiny_model

FP8 = "engine.dtype: 'fp8', but fp8 runs on CUDA GPUs, not on cpu; use auto"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def refusal(main, path, monkeypatch, capsys):
    """The line that the command ends with."""
    monkeypatch.setattr(sys, "argv", ["job", "--config", str(path)])
    with pytest.raises(SystemExit) as ended:
        run_main(main)
    assert ended.value.code == 2
    return next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379"])
def test_another_cluster_s_machines_are_not_judged(address):
    check_engine(EngineSection(dtype="fp8"), WorkersSection(), address)


def test_a_cluster_that_the_environment_names_is_not_judged(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    check_engine(EngineSection(dtype="fp8"), WorkersSection(), None)


def test_engines_of_workers_without_a_gpu_are_not_judged_by_the_machine_s_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_engine(EngineSection(dtype="int4"), WorkersSection(use_gpu=False), None)


def test_each_worker_has_a_copy_of_the_model(tmp_path, monkeypatch):
    """One was counted: workers died for want of memory, one after another."""
    model = str(save_tiny_model(tmp_path / "model"))
    section = EngineSection(dtype="float32", device="cpu", num_slots=1, slot_tokens=64)
    weights = weight_bytes(model, "float32")
    monkeypatch.setattr("pasta.engine.memory.machine_memory", lambda: 3 * weights)
    check_engine(section, WorkersSection(num_workers=1), None, [model])
    with pytest.raises(UserError, match="the weights of 4 engines take"):
        check_engine(section, WorkersSection(num_workers=4), None, [model])


def test_reinforcement_learning_says_it_before_ray_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rl, "ray_cluster", lambda *_, **__: pytest.fail("Ray was started"))
    path = tmp_path / "rl.yaml"
    data = rl_dict(tmp_path)
    path.write_text(yaml.safe_dump(data | {"engine": {**data["engine"], "cuda_graphs": "on"}}))
    said = refusal(rl.main, path, monkeypatch, capsys)
    assert said == "error: engine.cuda_graphs: 'on', but the model runs on cpu; expected auto or off"


def test_draft_heads_that_do_not_fit_the_policy_are_named_before_ray_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rl, "ray_cluster", lambda *_, **__: pytest.fail("Ray was started"))
    path = tmp_path / "rl.yaml"
    path.write_text(yaml.safe_dump(rl_dict(tmp_path)))
    said = save_misfit_heads(tmp_path / "start")
    assert refusal(rl.main, path, monkeypatch, capsys) == f"error: model.init_from: {said}"


def test_a_slot_too_small_for_any_prompt_and_its_answer_is_named_before_ray_starts(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(rl, "ray_cluster", lambda *_, **__: pytest.fail("Ray was started"))
    path = tmp_path / "rl.yaml"
    data = rl_dict(tmp_path)
    path.write_text(yaml.safe_dump(data | {"engine": {**data["engine"], "slot_tokens": 42}}))
    said = refusal(rl.main, path, monkeypatch, capsys)
    assert said.startswith(
        "error: engine.slot_tokens: 42, but a slot holds a prompt, of which the shortest takes "
    )


def test_a_slot_of_more_tokens_than_the_model_has_positions_is_named_before_ray_starts(
    tmp_path, monkeypatch, capsys
):
    """On another cluster too: the model is the same there."""
    monkeypatch.setattr(rl, "ray_cluster", lambda *_, **__: pytest.fail("Ray was started"))
    path = tmp_path / "rl.yaml"
    data = rl_dict(tmp_path)
    path.write_text(yaml.safe_dump(data | {"engine": {**data["engine"], "slot_tokens": 1 << 20}}))
    said = refusal(rl.main, path, monkeypatch, capsys)
    assert said.startswith(f"error: engine.slot_tokens: 1048576, but {tmp_path}/start has ")
    with pytest.raises(UserError, match="1048576, but"):
        check_engine(EngineSection(slot_tokens=1 << 20), WorkersSection(), "auto", [str(tmp_path / "start")])


@pytest.mark.parametrize("done", [False, True], ids=["to do", "done"])
def test_a_pipeline_says_it_of_a_stage_that_was_never_done(tmp_path, monkeypatch, capsys, done):
    path = write_pipeline(tmp_path)
    sample = yaml.safe_load((tmp_path / "sample.yaml").read_text())
    (tmp_path / "sample.yaml").write_text(yaml.safe_dump(sample | {"engine": {"dtype": "fp8"}}))
    if not done:
        assert refusal(pipeline.main, path, monkeypatch, capsys) == f"error: round-1-sample: {FP8}"
        assert not (tmp_path / "out").exists()
        return
    config, steps = pipeline.read_recipe(pipeline.parser().parse_args(["--config", str(path)]))
    monkeypatch.setattr(pipeline, "_finished", lambda config, name: [object()] if "sample" in name else [])
    pipeline.check_engines(config, pipeline.read_stages(config, steps), None)
