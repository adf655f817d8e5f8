"""Adapters: what they train, and that merging them changes nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pasta.config import parse_config
from pasta.data.collate import ThreadCollator
from pasta.data.dataset import TOKENIZER_DIR
from pasta.errors import UserError
from pasta.lang import CONTROL_TOKENS
from pasta.rl.train import check_config
from pasta.tracking import Tracker
from pasta.training import preference
from pasta.training.config import LoraSection, SftConfig
from pasta.training.lora import check_targets
from pasta.training.preference_config import PreferenceConfig
from pasta.training.run import RunContext
from pasta.training.sft import make_trainer, prepare, train
from tests.rl.runs import rl_config, rl_dict
from tests.support.paths import ROOT
from tests.training.pair_runs import preference_dict
from tests.training.runs import sft_dict
from tests.training.test_model import saved_model


def _config(directory: Path, tied: bool, **recipe: Any) -> SftConfig:
    """A run with adapters on a model that has never seen a control token."""
    values = sft_dict(directory, **recipe)
    start = saved_model(directory / "start", tie_word_embeddings=tied, initializer_range=0.2)
    values["model"] = {"init_from": str(start), "attention": "eager", "save_dtype": "float32"}
    values["lora"] = {"rank": 4, "alpha": 8, "keep_adapter": True}
    return parse_config(values, SftConfig, "tiny.yaml")


def _context(config: SftConfig, directory: Path) -> RunContext:
    prepared = prepare(config, directory / "data")
    return RunContext(prepared.path, directory / "work", False, lambda metrics, checkpoint: None)


@pytest.mark.parametrize("tied", [True, False])
def test_of_the_embedding_only_new_tokens_rows_are_trained(tmp_path: Path, tied: bool) -> None:
    config = _config(tmp_path, tied)
    context = _context(config, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(context.data_dir / TOKENIZER_DIR)
    trainer = make_trainer(config, context, tokenizer, [], Tracker())
    batch = ThreadCollator(pad_id=0)(list(trainer.train_dataset)[:4])
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.model.train()
    trainer.compute_loss(trainer.model, batch).backward()
    trained = {name: p.grad for name, p in trainer.model.named_parameters() if p.requires_grad}
    tokens = {name: grad for name, grad in trained.items() if "token_adapter" in name}
    assert all("lora_" in name or name in tokens for name in trained)
    assert len(tokens) == (1 if tied else 2)
    for name, grad in tokens.items():
        assert grad is not None
        assert grad.shape == before[name].shape
        assert grad.shape[0] == len(CONTROL_TOKENS)
        assert grad.abs().sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_the_saved_model_is_whole_and_differs_in_new_rows_only(tmp_path: Path, tied: bool) -> None:
    config = _config(tmp_path, tied, learning_rate=1e-2, max_steps=4)
    figures = train(config, _context(config, tmp_path))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager")
    start = AutoModelForCausalLM.from_pretrained(tmp_path / "start")
    old = start.get_input_embeddings().weight.shape[0]
    for module, before in (
        (saved.get_input_embeddings(), start.get_input_embeddings()),
        (saved.get_output_embeddings(), start.get_output_embeddings()),
    ):
        assert torch.equal(module.weight[:old], before.weight)
        moved = (module.weight[old:] - before.weight.mean(0)).abs().amax(dim=1)
        assert (moved > 1e-3).sum() >= 3  # <async> is never predicted, and some are not in this data
    assert (tmp_path / "model/adapter/adapter_model.safetensors").is_file()
    assert figures["eval_loss"] == pytest.approx(_held_out_loss(config, tmp_path), rel=1e-3)


def _held_out_loss(config: SftConfig, directory: Path) -> float:
    """The loss of the saved model, which is then one without adapters."""
    values = sft_dict(directory) | {"output_dir": str(directory / "again")}
    values["model"] = {"init_from": str(directory / "model"), "attention": "eager"}
    again = parse_config(values, SftConfig, "tiny.yaml")
    context = _context(again, directory)
    tokenizer = AutoTokenizer.from_pretrained(context.data_dir / TOKENIZER_DIR)
    return float(make_trainer(again, context, tokenizer, [], Tracker()).evaluate()["eval_loss"])


def test_new_tokens_under_zero_3_are_refused(tmp_path: Path) -> None:
    config = _config(tmp_path, True, deepspeed=str(ROOT / "configs/deepspeed/zero3.json"))
    with pytest.raises(UserError, match=r"zero3\.json: under ZeRO-3 PEFT cannot train"):
        prepare(config, tmp_path / "data")


@pytest.mark.parametrize(
    "targets", ["all-linear", ["q_proj", "layers.0.mlp.up_proj"], ["lm_head", "embed_tokens"]]
)
def test_layers_of_the_model_may_be_named(tmp_path: Path, targets: Any) -> None:
    check_targets(LoraSection(targets=targets), str(saved_model(tmp_path)))


def _prepare(job: str, directory: Path, lora: dict[str, Any]) -> None:
    """Check a run with these adapters, as its job does before any worker starts."""
    if job == "rl":
        check_config(rl_config(rl_dict(directory, lora=lora)))
    elif job == "preference":
        values = preference_dict(directory) | {"lora": lora}
        preference.prepare(parse_config(values, PreferenceConfig, "tiny.yaml"), directory / "data")
    else:
        values = sft_dict(directory) | {"lora": lora}
        values["model"] = {"init_from": str(saved_model(directory / "start")), "attention": "eager"}
        prepare(parse_config(values, SftConfig, "tiny.yaml"), directory / "data")


@pytest.mark.parametrize("job", ["sft", "preference", "rl"])
def test_a_name_that_no_layer_has_is_refused_though_others_are_right(tmp_path: Path, job: str) -> None:
    with pytest.raises(UserError, match=r"lora\.targets: 'v_porj': .* has no such layer; expected .*v_proj"):
        _prepare(job, tmp_path, {"targets": ["q_proj", "v_porj"]})
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_an_adapter_of_weights_that_are_shared_is_refused(tmp_path: Path, target: str) -> None:
    """Merged it would change the other layer too: the model would not be the one that was trained."""
    with pytest.raises(
        UserError, match=rf"lora\.targets: '{target}': .* shares the weights .*v_proj, .*[^d]$"
    ):
        _prepare("rl", tmp_path, {"targets": ["q_proj", target]})


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_an_adapter_where_new_tokens_rows_are_trained_is_refused(tmp_path: Path, target: str) -> None:
    """PEFT does one of the two."""
    with pytest.raises(UserError, match=rf"lora\.targets: '{target}': .* gets new tokens, whose rows"):
        _prepare("sft", tmp_path, {"targets": ["q_proj", target]})
