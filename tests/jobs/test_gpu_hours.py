"""``jobs.pipeline --gpu-hours`` prices a recipe's stages by its own files, and says which it cannot price."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs import pipeline
from jobs.gpu_hours import GpuHours, StageHours, _Source
from pasta.config import load_config
from pasta.errors import UserError
from pasta.judges.config import JudgeSection, RewardModelSection
from pasta.rl.config import RlConfig
from pasta.simulation.config import SimulateConfig
from pasta.simulation.roofline import RooflineSection
from tests.support.paths import ROOT

RECIPE = ROOT / "configs/pipelines/gemma-7b.yaml"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def h100(tmp_path_factory) -> Path:
    """The H100's configuration with few answers."""
    values = yaml.safe_load((ROOT / "configs/simulate/h100-gemma-7b.yaml").read_text())
    values["trace"]["count"], values["requests"] = 12, 30
    path = tmp_path_factory.mktemp("simulate") / "h100.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def prices(h100: Path) -> GpuHours:
    return GpuHours(load_config(h100, SimulateConfig, []), lambda text, important: None)


def priced(h100: Path, change: Any = lambda name, config: config) -> dict[str, StageHours]:
    arguments = pipeline.parser().parse_args(["--config", str(RECIPE)])
    config, steps = pipeline.read_recipe(arguments)
    stages = {name: change(name, each) for name, each in pipeline.read_stages(config, steps).items()}
    return {each.name: each for each in prices(h100).of(steps, stages)}


def test_supervised_finetuning_takes_a_pass_for_each_answer(h100):
    estimator, stage = prices(h100), priced(h100)["sft"]
    roofline = load_config(h100, SimulateConfig, []).costs.roofline
    row = estimator.row_tokens[True]
    # Checkpointing computes the forward twice; ZeRO-3 moves weights twice and gradients once.
    seconds = 87_000 * 4 * roofline.training_s(row, row, forwards=4, moved=3)
    assert stage.hours == pytest.approx(seconds / 3600)
    assert stage.gpus == 8
    assert row > estimator.row_tokens[False]


@pytest.mark.slow
def test_a_round_trains_on_at_most_a_pair_for_each_prompt_that_it_sampled(h100):
    stage = priced(h100)["prefer-2-4"]
    assert stage.work == "trains on 4,000 pairs at most, 1 epochs"
    fewer = priced(h100, lambda name, config: of_100_prompts(config) if name == "sample-2-4" else config)
    assert fewer["prefer-2-4"].hours == pytest.approx(stage.hours / 40)
    assert fewer["sample-2-4"].hours == pytest.approx(priced(h100)["sample-2-4"].hours / 40)


def test_no_more_pairs_are_trained_on_than_the_prompts_give(h100):
    def more(name: str, config: Any) -> Any:
        if name != "prefer-2-4":
            return config
        return dataclasses.replace(config, data=dataclasses.replace(config.data, pairs=9_000))

    assert priced(h100, more)["prefer-2-4"].work == "trains on 4,000 pairs at most, 1 epochs"


def test_the_reference_of_a_pair_moves_weights_for_its_forward_alone(h100):
    estimator, stage = prices(h100), priced(h100)["prefer-1-1"]
    roofline = load_config(h100, SimulateConfig, []).costs.roofline
    length = estimator.row_tokens[True]
    trained = roofline.training_s(2 * length, length, forwards=4, moved=3)
    reference = roofline.training_s(2 * length, length, forwards=1, moved=1)
    assert stage.hours == pytest.approx(4_000 * (trained + reference) / 3600)


def of_100_prompts(config: Any) -> Any:
    return dataclasses.replace(config, prompts=dataclasses.replace(config.prompts, count=100))


def test_a_rate_that_too_few_requests_cannot_say_is_not_priced(h100):
    values = yaml.safe_load(h100.read_text()) | {"requests": 2, "warmup": 0.0}
    few = h100.with_name("few.yaml")
    few.write_text(yaml.safe_dump(values))
    stage = priced(few)["sample-1"]
    assert stage.hours is None
    assert "requests 2: too few for " in stage.work


def test_slots_that_the_simulation_s_device_has_no_room_for_are_said_not_to_be_priced(h100):
    def wider(name: str, config: Any) -> Any:
        if name != "sample-1":
            return config
        return dataclasses.replace(config, engine=dataclasses.replace(config.engine, num_slots=48))

    found = priced(h100, wider)
    assert found["sample-1"].hours is None
    assert found["sample-1"].work.startswith(
        "not estimated: engine.num_slots 48: with slot_tokens 4096 weights"
    )
    assert found["sample-2-4"].hours


def test_what_endpoints_do_costs_no_gpu(h100):
    found = priced(h100)
    assert {found["annotate"].hours, found["score-1-inf"].hours} == {0.0}


def test_a_reward_model_on_our_own_gpus_is_said_not_to_be_priced(h100):
    def rewarded(name: str, config: Any) -> Any:
        if not hasattr(config, "judge"):
            return config
        judge = JudgeSection("reward", reward=RewardModelSection("./reward"))
        # Alpaca's prompts need not be there.
        return dataclasses.replace(of_100_prompts(config) if name == "evaluate" else config, judge=judge)

    found = priced(h100, rewarded)
    assert found["score-1-inf"].hours is None
    assert found["score-1-inf"].work == "not estimated: what judge.reward.model takes"
    assert found["evaluate"].hours
    assert found["evaluate"].work.endswith("; without judge.reward.model")


@pytest.mark.slow
def test_an_evaluation_is_priced_by_its_prompts_one_at_a_time(h100, tmp_path):
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps([{"instruction": f"Question {n}?"} for n in range(5)]))

    def with_file(repeats: int) -> StageHours:
        def change(name: str, config: Any) -> Any:
            if name != "evaluate":
                return config
            section = dataclasses.replace(config.prompts, source=str(prompts))
            return dataclasses.replace(config, prompts=section, repeats=repeats)

        return priced(h100, change)["evaluate"]

    timed, untimed = with_file(1), with_file(0)
    assert timed.work == "5 prompts by 12 methods, 2 times each"
    assert untimed.work == "5 prompts by 12 methods, 1 times each"
    # Also where nothing is timed, a worker decodes a prompt after the other.
    assert untimed.hours == pytest.approx(timed.hours / 2)
    assert untimed.hours > 0


@pytest.mark.parametrize("name", ["answers.jsonl", "annotated-00000.jsonl"])
@pytest.mark.parametrize(("documents", "counted"), [(None, 3), (87_000, 3), (2, 2)])
def test_the_answers_of_a_file_or_a_stage_of_one_s_own_are_counted(h100, tmp_path, name, documents, counted):
    """One a line, though some may answer the same prompt; the prompt may be a text."""
    (tmp_path / name).write_text('{"prompt": "What is tea?", "annotated": "A drink."}\n' * 3)
    source = tmp_path / name if name == "answers.jsonl" else tmp_path

    def of_mine(stage: str, config: Any) -> Any:
        if stage != "sft":
            return config
        return dataclasses.replace(
            config, data=dataclasses.replace(config.data, source=str(source), documents=documents)
        )

    def without_reference(steps: Any) -> Any:
        return [dataclasses.replace(each, reads={}) if each.name == "sft" else each for each in steps]

    arguments = pipeline.parser().parse_args(["--config", str(RECIPE)])
    config, steps = pipeline.read_recipe(arguments)
    stages = {name: of_mine(name, each) for name, each in pipeline.read_stages(config, steps).items()}
    found = {each.name: each.work for each in prices(h100).of(without_reference(steps), stages)}
    assert found["sft"] == f"trains on {counted} answers, 4 epochs"


def test_pairs_that_are_trained_on_for_so_many_steps_are_told_with_their_steps(h100):
    def in_steps(name: str, config: Any) -> Any:
        if name != "prefer-2-4":
            return config
        optimisation = dataclasses.replace(config.optimisation, max_steps=30, warmup_steps=0)
        return dataclasses.replace(config, optimisation=optimisation)

    assert priced(h100, in_steps)["prefer-2-4"].work == "trains on 4,000 pairs at most, 30 steps"


class TestReinforcementLearning:
    """Of 60 batches of 128 answers to 768 prompts, with two trainers and two actors, a GPU each."""

    def priced(self, h100: Path, tmp_path: Path, **keys: Any) -> StageHours:
        section = {"job": "rl", "config": "configs/rl/atlas-imperfect.yaml", "set": keys}
        path = tmp_path / "recipe.json"
        recipe = {"name": "tiny", "output_dir": str(tmp_path / "out"), "stages": {"rl": section}}
        path.write_text(json.dumps(recipe))
        config, steps = pipeline.read_recipe(pipeline.parser().parse_args(["--config", str(path)]))
        (found,) = prices(h100).of(steps, pipeline.read_stages(config, steps))
        return found

    def test_it_holds_the_gpus_of_trainers_and_actors(self, h100, tmp_path):
        assert self.priced(h100, tmp_path).gpus == 4
        assert self.priced(h100, tmp_path, **{"rollout.workers.num_workers": 6}).gpus == 8

    def test_several_steps_on_a_batch_train_on_each_answer_once(self, h100, tmp_path):
        config = load_config(ROOT / "configs/rl/atlas-imperfect.yaml", RlConfig)
        one = self.priced(h100, tmp_path, **{"objective.updates": 1, "optimisation.max_steps": 60})
        two = self.priced(h100, tmp_path, **{"objective.updates": 2, "optimisation.max_steps": 120})
        # As many batches, and a forward more for the policy as it was before the first step.
        estimator = prices(h100)
        row = estimator.row_tokens[True]
        more, fewer = (estimator._trained_s(config, 60 * 128 * row, row, n) for n in (4.0, 3.0))
        assert two.work == one.work == "samples 7,680 answers and trains on them"
        assert two.hours == pytest.approx(one.hours + (more - fewer) / 2 * 4 / 3600)

    def test_the_twin_answers_each_prompt_once_however_many_batches_have_it(self, h100, tmp_path):
        few, many = (self.priced(h100, tmp_path, **{"prompts.count": count}) for count in (16, 768))
        assert many.hours > few.hours

    def test_answers_that_are_sampled_ahead_take_no_time_beside_a_longer_training(self, h100, tmp_path):
        assert (
            self.priced(h100, tmp_path, **{"rollout.staleness": 1}).hours < self.priced(h100, tmp_path).hours
        )


def test_what_the_files_do_not_say_is_not_estimated(h100):
    found = priced(h100)["evaluate"]
    assert found.hours is None
    assert found.work == "not estimated: how much data prompts.source alpaca_eval.json has"


def test_the_command_prints_a_row_for_each_stage_and_runs_nothing(h100, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pipeline", "--config", str(RECIPE), "--gpu-hours", str(h100)])
    assert pipeline.main() == 0
    rows = [
        line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("|")
    ]
    assert rows[2:5] == ["annotate", "sft-twin", "sft"]
    assert rows[-2:] == ["evaluate", "all"]
    assert not (ROOT / "runs/pipelines/gemma-7b").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "stage"),
    [
        ("configs/pipelines/atlas.yaml", "round-2-prefer"),
        ("configs/pipelines/atlas-imperfect-rl.yaml", "rl-1"),
    ],
)
def test_other_recipes_are_priced_too(recipe, stage, h100, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pipeline", "--config", recipe, "--gpu-hours", str(h100)])
    assert pipeline.main() == 0
    assert f"| {stage} " in capsys.readouterr().out


def test_measured_costs_of_steps_price_no_training(monkeypatch, capsys):
    wrong = "configs/simulate/atlas.yaml"
    monkeypatch.setattr("sys.argv", ["pipeline", "--config", str(RECIPE), "--gpu-hours", wrong])
    with pytest.raises(
        UserError, match=r"^--gpu-hours: costs.file measures no training; expected costs.roofline$"
    ):
        pipeline.main()


def test_a_plan_and_an_estimate_at_once_are_refused(h100, capsys):
    with pytest.raises(SystemExit):
        pipeline.parser().parse_args(["--config", str(RECIPE), "--gpu-hours", str(h100), "--dry-run"])
    assert "--dry-run: not allowed with argument --gpu-hours" in capsys.readouterr().err


def test_a_training_pass_takes_as_long_as_the_slowest_of_arithmetic_memory_and_links():
    device = RooflineSection(
        parameters=1e9,
        layers=2,
        heads=4,
        kv_heads=4,
        head_dim=8,
        memory_bytes_s=1e12,
        flops_s=1e14,
        memory_bytes=80e9,
        bandwidth_efficiency=0.5,
        compute_efficiency=0.5,
        overhead_s=0.001,
        link_bytes_s=1e11,
    )
    attended = 4 * 2 * 4 * 8 * 500
    computed = 10_000 * 3 * (2e9 + attended) / 5e13
    assert device.training_s(10_000, 1000, 3, moved=0) == pytest.approx(0.001 + computed)
    assert device.training_s(1, 1000, 3, moved=0) == pytest.approx(0.001 + 3 * 2e9 / 5e11)
    assert device.training_s(1, 1000, 3, moved=3) == pytest.approx(0.001 + 3 * 2e9 / 1e11)
    alone = dataclasses.replace(device, link_bytes_s=None)
    assert alone.training_s(1, 1000, 3, moved=3) == device.training_s(1, 1000, 3, moved=0)


def test_prompts_of_a_stage_that_samples_are_counted(tmp_path):
    def section(job: str, **keys: Any) -> dict[str, Any]:
        return {"job": job, "config": str(ROOT / f"configs/{job}/atlas.yaml"), "set": keys}

    stages = {
        "sample": section("sample", **{"prompts.count": 7}),
        "evaluate": section("evaluate", **{"prompts.source": "@sample", "prompts.count": None}),
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"name": "tiny", "output_dir": str(tmp_path / "out"), "stages": stages}))
    config, steps = pipeline.read_recipe(pipeline.parser().parse_args(["--config", str(path)]))
    by_name = {each.name: each for each in steps}
    assert _Source(by_name["evaluate"], by_name, pipeline.read_stages(config, steps)).records() == 7
