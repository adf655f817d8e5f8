"""What rollout actors do, in this process: answers of a batch, and their log-probabilities."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from pasta.data.linearise import Example
from pasta.data.prompts import Prompt
from pasta.interpreter import linearise
from pasta.rl.rollouts import Group
from pasta.rl.sampling import Baselines, Roller
from tests.rl.by_hand import sampled_logps_by_hand
from tests.rl.runs import rl_config, rl_dict
from tests.support.tokenizers import byte_level_without_system
from tests.training.pair_runs import CODEC

GROUPS = [Group(f"prompt {n}", list(range(10, 30 + n))) for n in range(3)]


def test_an_answer_s_log_probabilities_are_those_under_its_thread_mask(tmp_path: Path):
    config = rl_config(rl_dict(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "start", attn_implementation="eager")
    for group, answers in zip(GROUPS, Roller(config).sample(0, GROUPS, score=True), strict=True):
        for answer in answers:
            rows = linearise(CODEC.grammar, group.prompt_ids, answer["response_ids"])
            example = Example(
                rows.token_ids, rows.positions, rows.segments, rows.targets, rows.kinds, rows.sees
            )
            with torch.no_grad():
                expected = sampled_logps_by_hand(model, example, config.limits)
            assert len(answer["logprobs"]) == len(answer["response_ids"])
            assert sum(answer["logprobs"]) == pytest.approx(float(expected.sum()), abs=1e-2)


def test_answers_depend_on_batch_and_prompt_and_not_on_what_is_sampled_beside_them(tmp_path: Path):
    roller = Roller(rl_config(rl_dict(tmp_path)))
    together = roller.sample(4, GROUPS, score=False)
    (alone,) = roller.sample(4, GROUPS[1:2], score=False)
    assert alone == together[1]
    (later,) = roller.sample(5, GROUPS[1:2], score=False)
    assert later != alone


def test_an_actor_s_engine_is_the_configured_one_but_for_drafts(tmp_path: Path):
    values = rl_dict(tmp_path)
    values["engine"] |= {"multi_step": False, "jump_forward": False, "drafts": 4}
    found = Roller(rl_config(values)).engine.config
    assert (found.multi_step, found.jump_forward, found.drafts) == (False, False, 0)


def test_the_twin_answers_a_system_message_where_its_template_takes_none(tmp_path: Path):
    config = rl_config(rl_dict(tmp_path))
    byte_level_without_system().save_pretrained(tmp_path / "start")
    prompt = Prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say tea."}])
    (record,) = Baselines(config).answer([prompt])
    assert record["twin"]["num_tokens"] > 0
