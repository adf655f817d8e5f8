"""Loss and gradient of reinforcement learning against a computation by hand, on a tiny model with threads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from pasta.data.linearise import Example, make_example
from pasta.data.measures import measure_document
from pasta.data.prompts import PromptsSection
from pasta.evaluation.prompts import read_prompts
from pasta.judges.grader import GraderJudge
from pasta.lang import strip, to_text
from pasta.rl.batches import Batches, Source
from pasta.rl.config import RlConfig
from pasta.rl.grpo import ThreadGrpoTrainer
from pasta.rl.rollouts import Group, Rollout, Weights
from pasta.rl.train import make_trainer
from pasta.training.callbacks import LOGGED
from pasta.training.run import RunContext
from tests.rl.by_hand import in_storage_order, sampled_logps_by_hand
from tests.rl.runs import rl_config, rl_dict
from tests.support.documents import random_document
from tests.training.pair_runs import CODEC, TOKENIZER

PROMPTS = read_prompts(PromptsSection("atlas", 2))
CANDIDATES = 3
TWIN_TOKENS = 40
DOCUMENTS = [document for document in map(random_document, range(30)) if strip(to_text(document)).strip()][
    : len(PROMPTS) * CANDIDATES
]


def examples() -> list[Example]:
    return [
        make_example(CODEC, PROMPTS[n // CANDIDATES].messages, document, "pasta")
        for n, document in enumerate(DOCUMENTS)
    ]


class Told:
    """Answers that are known beforehand; ``logprobs`` [tokens] of each, if they come from older weights."""

    def __init__(self, logprobs: Sequence[list[float]] | None = None) -> None:
        self.logprobs = logprobs
        self.weights: Weights = {}

    def publish(self, weights: Weights, version: int) -> None:
        self.weights = weights

    def sample(self, batch: int, groups: Sequence[Group]) -> Rollout:
        assert [group.prompt_ids for group in groups] == [CODEC.encode_prompt(p.messages) for p in PROMPTS]
        made = []
        for n, document in enumerate(DOCUMENTS):
            ids = [*CODEC.encode(document), CODEC.eos_id]
            counts = measure_document(document, CODEC)
            made.append(
                {
                    "annotated": to_text(document),
                    "response_ids": ids,
                    "finish_reason": "stop",
                    "num_tokens": len(ids),
                    "critical_path": counts.trace.critical_path,
                    "num_threads": counts.num_threads,
                    **({} if self.logprobs is None else {"logprobs": self.logprobs[n]}),
                }
            )
        return Rollout([made[:CANDIDATES], made[CANDIDATES:]], version=0)


def config_of(directory: Path, **objective: Any) -> RlConfig:
    data = rl_dict(directory)
    data["sampling"]["candidates"] = CANDIDATES
    data["optimisation"] |= {"rows": 6, "max_steps": 1}
    data["workers"]["num_workers"] = 1
    # The answers are nonsense: speed alone counts.
    data["reward"] = {"quality_weight": 0, "min_quality": 0.0}
    data["limits"]["max_tokens"] = 500
    data["engine"]["slot_tokens"] = 800
    data["objective"] = objective
    return rl_config(data)


def trainer_of(directory: Path, config: RlConfig, told: Told) -> ThreadGrpoTrainer:
    records = [
        {
            "id": prompt.id,
            "messages": prompt.messages,
            "prompt_ids": CODEC.encode_prompt(prompt.messages),
            "twin": {"text": "…", "num_tokens": TWIN_TOKENS, "finish_reason": "stop"},
        }
        for prompt in PROMPTS
    ]
    batches = Batches(config, records, CODEC.grammar, Source(told, GraderJudge()))
    batches.schedule[:] = [[0, 1]]
    context = RunContext(directory, directory / "work", False, lambda metrics, checkpoint: None)
    trainer = make_trainer(config, context, TOKENIZER, [], batches, records)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def batch_of(trainer: ThreadGrpoTrainer) -> dict[str, Any]:
    rows = [{"prompt": prompt.messages} for prompt in PROMPTS for _ in range(CANDIDATES)]
    return trainer._generate_and_score_completions(rows)


def loss_of(trainer: ThreadGrpoTrainer) -> Tensor:
    return trainer._compute_loss(trainer.model, batch_of(trainer))


def advantages_by_hand() -> list[float]:
    rewards = [TWIN_TOKENS / measure_document(document, CODEC).trace.critical_path for document in DOCUMENTS]
    means = [sum(rewards[at : at + CANDIDATES]) / CANDIDATES for at in (0, CANDIDATES)]
    return [reward - means[n // CANDIDATES] for n, reward in enumerate(rewards)]


@pytest.mark.slow
def test_the_gradient_is_that_of_centred_advantages_over_the_tokens_of_threads(tmp_path: Path):
    config = config_of(tmp_path)
    trainer = trainer_of(tmp_path, config, Told())
    loss = loss_of(trainer)
    loss.backward()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "start", attn_implementation="eager")
    surrogate = torch.zeros(())
    expected = 0.0
    for advantage, example in zip(advantages_by_hand(), examples(), strict=True):
        logps = sampled_logps_by_hand(model, example, config.limits)
        surrogate = surrogate - advantage * logps.sum() / (6 * 500)
        expected -= advantage * len(logps) / (6 * 500)
    surrogate.backward()
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    wanted = dict(model.named_parameters())
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name].grad, rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.slow
def test_ratios_are_clipped_by_token_against_the_weights_that_sampled_and_kl_is_added(tmp_path: Path):
    config = config_of(tmp_path, epsilon=0.1, epsilon_high=0.3, kl_weight=0.5)
    start = AutoModelForCausalLM.from_pretrained(tmp_path / "start", attn_implementation="eager")
    with torch.no_grad():
        old = [sampled_logps_by_hand(start, example, config.limits) for example in examples()]
    trainer = trainer_of(
        tmp_path, config, Told([in_storage_order(e, o) for e, o in zip(examples(), old, strict=True)])
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
        new = [sampled_logps_by_hand(trainer.model, example, config.limits) for example in examples()]
    total, clipped = 0.0, 0
    for advantage, now, before in zip(advantages_by_hand(), new, old, strict=True):
        ratio = (now - before).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.3) * advantage)
        divergence = ratio * ((before - now).exp() - (before - now) - 1)
        total += float((-gain + 0.5 * divergence).sum()) / (6 * 500)
        clipped += int(((ratio < 0.9) & (advantage < 0) | (ratio > 1.3) & (advantage > 0)).sum())
    assert clipped > 0
    assert loss_of(trainer).item() == pytest.approx(total, abs=1e-5)
    share = clipped / sum(map(len, new))
    assert trainer._metrics["train"]["clip_ratio/region_mean"] == [pytest.approx(share, abs=1e-4)]


def test_the_actors_get_the_policy_s_weights_by_the_names_of_its_checkpoint(tmp_path: Path):
    told = Told()
    trainer = trainer_of(tmp_path, config_of(tmp_path), told)
    loss_of(trainer)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "start").state_dict()
    assert told.weights.keys() == saved.keys() - {"lm_head.weight"}
    for name, value in told.weights.items():
        torch.testing.assert_close(value, saved[name], rtol=0, atol=0)


def logged(trainer: ThreadGrpoTrainer, name: str) -> float:
    """The last value of a figure, by the name it is tracked under."""
    key = next(key for key, tracked in LOGGED.items() if tracked == name)
    return trainer._metrics["train"][key][-1]


class Changed(Told):
    """The same with some fields changed: those of each prompt's first answer, and those of each prompt's answers."""

    def __init__(self, first: dict[str, Any], prompts: Sequence[dict[str, Any]] = ({}, {})) -> None:
        super().__init__()
        self.first, self.prompts = first, prompts

    def sample(self, batch: int, groups: Sequence[Group]) -> Rollout:
        rollout = super().sample(batch, groups)
        for answers, changes in zip(rollout.candidates, self.prompts, strict=True):
            answers[0].update(self.first)
            for answer in answers:
                answer.update(changes)
        return rollout


def test_the_share_that_is_cut_is_of_answers_that_did_not_end_by_themselves(tmp_path: Path):
    trainer = trainer_of(tmp_path, config_of(tmp_path), Changed({"finish_reason": "length"}))
    loss_of(trainer)
    assert logged(trainer, "rl/cut") == pytest.approx(1 / CANDIDATES)


def test_ends_of_an_answer_that_was_cut_are_not_learned(tmp_path: Path):
    batch = batch_of(trainer_of(tmp_path, config_of(tmp_path), Changed({"finish_reason": "length"})))
    is_end = torch.isin(batch["completion_ids"], torch.tensor([CODEC.eos_id, CODEC.control.async_close]))
    learned = is_end & batch["completion_mask"].bool() & batch["tool_mask"].bool()
    assert learned.any(dim=1).tolist() == [n % CANDIDATES > 0 for n in range(len(DOCUMENTS))]


def test_nothing_of_an_answer_that_was_cut_is_learned_if_asked_for(tmp_path: Path):
    config = config_of(tmp_path, mask_cut=True)
    batch = batch_of(trainer_of(tmp_path, config, Changed({"finish_reason": "length"})))
    learned = batch["completion_mask"].bool() & batch["tool_mask"].bool()
    assert learned.any(dim=1).tolist() == [n % CANDIDATES > 0 for n in range(len(DOCUMENTS))]


def test_rewards_that_differ_between_prompts_alone_have_no_spread(tmp_path: Path):
    paths = [{"critical_path": 10}, {"critical_path": 20}]
    trainer = trainer_of(tmp_path, config_of(tmp_path), Changed({}, paths))
    loss_of(trainer)
    assert logged(trainer, "rl/reward_spread") == pytest.approx(0, abs=1e-6)
