"""What decides whether a run and its prepared prompts are those of before, and what it has cost."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from pasta.data.dataset import TOKENIZER_DIR
from pasta.data.prompts import Prompt
from pasta.errors import UserError
from pasta.lang.tokenizer import store_scheme, stored_scheme
from pasta.rl import train
from pasta.rl.train import PROMPTS_FILE, check_config, inputs, prepare
from pasta.rows import read_whole_rows
from pasta.stages.records import Record, RecordFile
from pasta.stages.stage import Manifest, write_manifest
from pasta.training.run import RunContext, TrainingStage
from tests.engine.test_text_part import MODELS
from tests.rl.runs import rl_config, rl_dict
from tests.training.pair_runs import save_tiny_model


def test_another_reward_model_is_another_run(tmp_path: Path) -> None:
    reward = tmp_path / "reward"
    reward.mkdir()
    judge = {"kind": "reward", "reward": {"model": str(reward)}}
    config = rl_config(rl_dict(tmp_path, judge=judge, reward={"quality_weight": 4, "min_quality": 0.5}))
    identities = set()
    for content in ("a", "b"):
        (reward / "model.safetensors").write_text(content)
        identities.add(TrainingStage("rl", config, inputs(config)).identity)
    assert len(identities) == 2


def test_prepared_prompts_hold_the_tokenizer_of_the_model_that_is_trained(tmp_path: Path) -> None:
    """Also where another model with the same twin has prepared the same prompts before."""
    twin = str(save_tiny_model(tmp_path / "twin"))
    prompt = Prompt([{"role": "user", "content": "Say tea."}])
    answered = {"text": "Tea.", "num_tokens": 2, "finish_reason": "stop"}
    record = {"id": prompt.id, "messages": prompt.messages, "prompt_ids": [1], "twin": answered}
    for scheme in ("predicted-in-tens", "shared"):
        config = rl_config(rl_dict(tmp_path / scheme, twin=twin))
        start = AutoTokenizer.from_pretrained(config.model.init_from)
        store_scheme(start, scheme)
        start.save_pretrained(config.model.init_from)
        tokenizer = check_config(config)
        prepared = prepare(config, tokenizer, [prompt], said(record), tmp_path / "cache")
        assert stored_scheme(AutoTokenizer.from_pretrained(prepared.path / TOKENIZER_DIR)) == scheme


def said(record: Record) -> Callable[[Sequence[Prompt], RecordFile], None]:
    """A twin that says this."""
    return lambda prompts, answers: answers.records.update({record["id"]: record})


def test_a_twin_s_answers_outlive_a_run_that_is_cut_before_training(tmp_path: Path) -> None:
    """It had answered thousands of prompts, and began with the first of them again."""
    prompts = [Prompt([{"role": "user", "content": word}]) for word in ("tea", "milk", "salt")]
    answered = {"text": "Tea.", "num_tokens": 2, "finish_reason": "stop"}
    asked: list[str] = []

    def answer(prompts: Sequence[Prompt], answers: RecordFile) -> None:
        for prompt in prompts:
            if prompt.id not in answers:
                asked.append(prompt.id)
                if len(asked) == 3:
                    raise KeyboardInterrupt
                record = {"id": prompt.id, "messages": prompt.messages, "prompt_ids": [1], "twin": answered}
                answers.add(prompt.id, record)

    config = rl_config(rl_dict(tmp_path))
    tokenizer, cache = check_config(config), tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        prepare(config, tokenizer, prompts, answer, cache)
    prepared = prepare(config, tokenizer, prompts, answer, cache)
    assert asked == [prompt.id for prompt in (*prompts, prompts[-1])]
    assert [row["id"] for row in read_whole_rows(prepared.path / PROMPTS_FILE)] == [
        each.id for each in prompts
    ]
    assert [*cache.iterdir()] == [prepared.path]


def test_a_twin_that_is_trained_again_answers_again(tmp_path: Path) -> None:
    twin = save_tiny_model(tmp_path / "twin")
    prompt = Prompt([{"role": "user", "content": "Say tea."}])
    answered = {"text": "Tea.", "num_tokens": 2, "finish_reason": "stop"}
    record = {"id": prompt.id, "messages": prompt.messages, "prompt_ids": [1], "twin": answered}
    config = rl_config(rl_dict(tmp_path, twin=str(twin)))
    tokenizer, reused = check_config(config), []
    for day in (1, 1, 2):
        finished = f"2026-01-0{day}T00:00:00+00:00"
        write_manifest(twin, Manifest("sft", "0" * 16, {}, {}, "v1", {}, finished))
        reused.append(prepare(config, tokenizer, [prompt], said(record), tmp_path / "cache").reused)
    assert reused == [False, True, False]


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("objective", {"kl_weight": 0.1}),
        ("reward", {"quality_weight": 4, "min_quality": 0.5}),
        ("sampling", {"candidates": 4, "temperature": 0.9}),
    ],
)
def test_a_run_that_was_cut_is_not_gone_on_with_for_another_objective(
    tmp_path: Path, section, values
) -> None:
    """As in the other ways to train: a run's directory is named after all that its weights depend on."""
    before = TrainingStage("rl", rl_config(rl_dict(tmp_path)), {})
    before.run_dir.mkdir(parents=True)
    assert TrainingStage("rl", rl_config(rl_dict(tmp_path)), {}).is_resumed
    after = TrainingStage("rl", rl_config(rl_dict(tmp_path, **{section: values})), {})
    assert (after.is_resumed, after.is_done) == (False, False)


def test_a_run_that_has_failed_too_often_goes_on_where_more_failures_are_allowed(tmp_path: Path) -> None:
    values = rl_dict(tmp_path)
    before = TrainingStage("rl", rl_config(values), {}).run_dir
    values["workers"]["max_failures"] = 20
    values["rollout"]["workers"]["max_failures"] = 20
    assert TrainingStage("rl", rl_config(values), {}).run_dir == before


def test_logging_and_checkpoints_at_other_steps_are_no_other_run(tmp_path: Path) -> None:
    values = rl_dict(tmp_path)
    before = TrainingStage("rl", rl_config(values), {})
    values["schedule"] = {"log_steps": 7, "save_steps": 14, "keep_checkpoints": 5}
    after = TrainingStage("rl", rl_config(values), {})
    assert (after.run_dir, after.identity) == (before.run_dir, before.identity)


def test_a_reference_that_sees_images_is_refused(tmp_path: Path) -> None:
    """TRL would load all of it: its log-probabilities would be those of other masks."""
    values = rl_dict(tmp_path, objective={"kl_weight": 0.1})
    MODELS["gemma3"]().save_pretrained(values["model"]["init_from"])
    with pytest.raises(
        UserError, match=r"^objective\.kl_weight: 0\.1: .*/start sees images, .* expected 0, lora"
    ):
        check_config(rl_config(values))
    check_config(rl_config(values | {"objective": {}}))
    check_config(rl_config(values | {"lora": {"targets": ["q_proj"]}}))


@pytest.mark.parametrize("kind", ["teacher", "grader"])
def test_what_a_teacher_was_paid_is_in_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "model": "judge", "api_key_env": None}
    judge = {"kind": kind, **({"teacher": {"endpoint": endpoint}} if kind == "teacher" else {})}
    config = rl_config(rl_dict(tmp_path, judge=judge, reward={"quality_weight": 4, "min_quality": 0.5}))
    usage = SimpleNamespace(usage=lambda: {"judge_cost": 2.0})
    monkeypatch.setattr(train, "make_judge", lambda *_: usage)
    ended: Any = SimpleNamespace(state=SimpleNamespace(log_history=[]))
    monkeypatch.setattr(train, "run_trainer", lambda *given: given[-1](ended))
    (tmp_path / train.PROMPTS_FILE).write_text("")
    context = RunContext(tmp_path, tmp_path / "work", False, lambda *_: None)
    rollouts: Any = object()
    assert train.train(config, context, rollouts) == ({"judge_cost": 2.0} if kind == "teacher" else {})
