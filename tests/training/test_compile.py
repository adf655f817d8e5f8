"""`optimisation.compile` makes a step faster, and none of its numbers other ones."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from pasta.data.collate import ThreadCollator
from pasta.data.dataset import TOKENIZER_DIR
from pasta.tracking import Tracker
from pasta.training.run import RunContext
from pasta.training.sft import make_trainer, prepare
from tests.training.runs import sft_config


@pytest.mark.slow
def test_compiled_layers_have_the_same_loss_and_gradients(tmp_path: Path) -> None:
    found = []
    for compiled in (False, True):
        config = sft_config(tmp_path, precision="fp32", compile=compiled)
        prepared = prepare(config, tmp_path / "data")
        tokenizer = AutoTokenizer.from_pretrained(prepared.path / TOKENIZER_DIR)
        context = RunContext(prepared.path, tmp_path / "work", False, lambda metrics, checkpoint: None)
        trainer = make_trainer(config, context, tokenizer, [], Tracker())
        batch = ThreadCollator(pad_id=0)(list(trainer.train_dataset)[:2])
        trainer.model.train()
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        layers = trainer.model.base_model.layers
        assert all((layer._compiled_call_impl is not None) == compiled for layer in layers)
        found.append((loss.detach(), {name: p.grad for name, p in trainer.model.named_parameters()}))
    (plain, gradients), (same, others) = found
    torch.testing.assert_close(same, plain)
    torch.testing.assert_close(others, gradients, atol=1e-6, rtol=1e-4)
