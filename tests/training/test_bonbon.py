"""The preference objectives equal their formulas, on log-probabilities of threads."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from pasta.data.dataset import TOKENIZER_DIR
from pasta.data.pairs import REFERENCE, PairCollator, pair_dataset
from pasta.interpreter import IGNORE
from pasta.training import bonbon
from pasta.training.bonbon import PreferenceTrainer, bonbon_beta, bonbon_loss
from pasta.training.preference import make_trainer, prepare
from pasta.training.run import RunContext
from tests.training.pair_runs import (
    bonbon_by_hand,
    logp_by_hand,
    pair_examples,
    preference_config,
    preference_dict,
    save_tiny_model,
)


def _trainer(
    directory: Path, *, rows: int = 2, eval_pairs: int = 0, precision: str = "fp32", **objective: Any
) -> PreferenceTrainer:
    """A trainer in this process, its reference another model than the policy, so that no term vanishes."""
    values = preference_dict(directory, rows=rows, precision=precision)
    values["data"]["eval_pairs"] = eval_pairs
    reference = save_tiny_model(directory / "reference", seed=1)
    values["objective"] = {"reference": str(reference), **objective}
    config = preference_config(values)
    prepared = prepare(config, directory / "data")
    context = RunContext(prepared.path, directory / "work", False, lambda metrics, checkpoint: None)
    tokenizer = AutoTokenizer.from_pretrained(prepared.path / TOKENIZER_DIR)
    return make_trainer(config, context, tokenizer, [])


def _models(directory: Path) -> tuple[torch.nn.Module, torch.nn.Module]:
    return tuple(
        AutoModelForCausalLM.from_pretrained(directory / name, attn_implementation="eager")
        for name in ("start", "reference")
    )


def _loss(trainer: PreferenceTrainer) -> torch.Tensor:
    batch = trainer.data_collator(list(trainer.train_dataset))
    trainer.model.train()
    return trainer.compute_loss(trainer.model, batch)


def test_beta_is_that_of_the_paper() -> None:
    assert bonbon_beta(2) == pytest.approx(0.5)
    assert 1 / (2 * bonbon_beta(10)) == pytest.approx(9 * 7129 / 2520)


def test_beta_needs_two_samples() -> None:
    with pytest.raises(ValueError, match="expected at least 2"):
        bonbon_beta(1)


def test_the_loss_is_its_formula() -> None:
    loss = bonbon_loss(torch.tensor([-20.0]), torch.tensor([3.0]), alpha=0.1, beta=0.25)
    assert loss.item() == pytest.approx(0.1 * 20 + 0.9 * (3 - 2) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.2, 1.0])
@pytest.mark.parametrize("log_probs", ["live", "precomputed"])
def test_bonbon_and_its_gradient_equal_a_computation_by_hand(
    tmp_path: Path, log_probs: str, alpha: float
) -> None:
    trainer = _trainer(tmp_path, alpha=alpha, num_samples=4, reference_log_probs=log_probs)
    loss = _loss(trainer)
    loss.backward()
    model, reference = _models(tmp_path)
    pairs = pair_examples(tmp_path / "stage/pairs.jsonl")
    expected = bonbon_by_hand(model, reference, pairs, alpha=alpha, samples=4)
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-3, rtol=1e-5)
    by_hand = dict(model.named_parameters())
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(parameter.grad, by_hand[name].grad, atol=1e-2, rtol=1e-4)


def test_where_only_the_chosen_answers_count_the_figures_are_those_of_pairs_and_the_rejected_have_no_gradient(
    tmp_path: Path,
) -> None:
    trainer = _trainer(tmp_path, alpha=1.0, num_samples=4)
    with_gradient: list[tuple[int, bool]] = []
    trainer.model.lm_head.register_forward_hook(
        lambda module, args, logits: with_gradient.append((len(logits), logits.requires_grad))
    )
    _loss(trainer)
    pairs = len(trainer.train_dataset)
    assert sorted(with_gradient) == [(pairs, False), (pairs, True)]
    alone = dict(trainer._metrics["train"])
    trainer._metrics["train"].clear()
    trainer.bonbon_alpha = 0.2
    _loss(trainer)
    for name, values in trainer._metrics["train"].items():
        assert values == pytest.approx(alone[name], abs=1e-4), name


def test_at_the_reference_the_margin_is_nought(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, alpha=0.2, num_samples=4, reference=None)
    loss = _loss(trainer).item()
    metrics = {name: fmean(values) for name, values in trainer._metrics["train"].items()}
    assert metrics["rewards/margins"] == pytest.approx(0.0, abs=1e-5)
    aim = 3 * (1 + 1 / 2 + 1 / 3)
    assert loss == pytest.approx(0.2 * -metrics["logps/chosen"] + 0.8 * aim**2, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_dpo_and_ipo_are_thread_aware_too(tmp_path: Path, loss: str) -> None:
    trainer = _trainer(tmp_path, loss=loss, beta=0.3)
    model, reference = _models(tmp_path)
    expected = []
    with torch.no_grad():
        for pair in pair_examples(tmp_path / "stage/pairs.jsonl"):
            ratios = [logp_by_hand(model, side) - logp_by_hand(reference, side) for side in pair]
            if loss == "dpo":
                expected.append(-F.logsigmoid(0.3 * (ratios[0] - ratios[1])))
            else:  # TRL's: log-ratios are means over tokens
                means = [
                    ratio / sum(t != -100 for t in side.shift_labels)
                    for ratio, side in zip(ratios, pair, strict=True)
                ]
                expected.append((means[0] - means[1] - 1 / 0.6) ** 2)
    torch.testing.assert_close(_loss(trainer).detach(), torch.stack(expected).mean(), atol=1e-3, rtol=1e-5)


def test_a_precomputed_reference_is_not_kept(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, reference_log_probs="precomputed")
    assert trainer.ref_model is None
    assert {"ref_chosen_logps", "ref_rejected_logps"} <= set(trainer.train_dataset.column_names)


@pytest.mark.slow
def test_a_run_cut_while_it_precomputes_goes_on_with_the_pieces_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bonbon, "PIECE_BATCHES", 1)
    whole = _trainer(tmp_path / "whole", rows=1, reference_log_probs="precomputed").train_dataset
    compute, computed = PreferenceTrainer.compute_ref_log_probs, []

    def cut_at_the_third(*args: Any) -> Any:
        computed.append(args)
        if len(computed) == 3:
            raise KeyboardInterrupt
        return compute(*args)

    monkeypatch.setattr(PreferenceTrainer, "compute_ref_log_probs", cut_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        _trainer(tmp_path / "cut", rows=1, reference_log_probs="precomputed")
    capsys.readouterr()
    resumed = _trainer(tmp_path / "cut", rows=1, reference_log_probs="precomputed").train_dataset
    assert len(computed) == 5, "two pairs were kept, the third was cut, two were left"
    assert "(train): 4 pairs, 2 found from an earlier run\n" in capsys.readouterr().out
    for name in REFERENCE:
        assert resumed[name][:] == whole[name][:]


@pytest.mark.slow
def test_log_probabilities_precomputed_in_one_number_format_are_not_taken_in_another(tmp_path: Path) -> None:
    made = [
        _trainer(tmp_path, precision=precision, reference_log_probs="precomputed").train_dataset[
            "ref_chosen_logps"
        ]
        for precision in ("bf16", "fp32")
    ]
    assert list(made[0]) != list(made[1])


def test_logits_are_made_of_answers_alone(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, reference_log_probs="precomputed")
    made: list[torch.Size] = []
    trainer.model.lm_head.register_forward_hook(lambda module, args, logits: made.append(logits.shape))
    _loss(trainer)
    labels = trainer.data_collator(list(trainer.train_dataset))["shift_labels"]
    answers = (labels != IGNORE).any(dim=0)
    assert [shape[1] for shape in made] == [int(answers.sum())]
    assert not answers[:8].any(), "prompts are longer than that"


@pytest.mark.slow
def test_what_is_logged_has_its_meaning(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, num_samples=3)
    _loss(trainer)
    model, reference = _models(tmp_path)
    with torch.no_grad():
        deltas, chosen = [], []
        for best, worst in pair_examples(tmp_path / "stage/pairs.jsonl"):
            ratios = [logp_by_hand(model, side) - logp_by_hand(reference, side) for side in (best, worst)]
            deltas.append(ratios[0] - ratios[1])
            chosen.append(logp_by_hand(model, best))
    metrics = {name: fmean(values) for name, values in trainer._metrics["train"].items()}
    assert metrics["rewards/margins"] == pytest.approx(float(sum(deltas) / 4) * bonbon_beta(3), rel=1e-3)
    assert metrics["rewards/accuracies"] == sum(delta > 0 for delta in deltas) / 4
    assert metrics["logps/chosen"] == pytest.approx(float(sum(chosen) / 4), rel=1e-4)


@pytest.mark.slow
def test_held_out_figures_are_means_over_pairs_however_they_are_batched(tmp_path: Path) -> None:
    shared, alone = (_trainer(tmp_path, rows=rows, eval_pairs=3).evaluate() for rows in (2, 3))
    for name in ("rewards/margins", "rewards/chosen", "logps/chosen"):
        assert shared[f"eval_{name}"] == pytest.approx(alone[f"eval_{name}"], rel=1e-4)


def test_a_batch_holds_the_chosen_answers_first(tmp_path: Path) -> None:
    preference_dict(tmp_path)
    pairs = pair_examples(tmp_path / "stage/pairs.jsonl")
    batch = PairCollator(pad_id=0, multiple=8)(list(pair_dataset(pairs)))
    for row, example in enumerate([pair[0] for pair in pairs] + [pair[1] for pair in pairs]):
        assert batch["input_ids"][row, : len(example)].tolist() == example.input_ids
        assert int(batch["completion_mask"][row].sum()) == sum(t != -100 for t in example.shift_labels)
