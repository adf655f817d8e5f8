"""The loss that the trainer optimises is the exact cross-entropy of every document by itself."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from pasta.data.collate import ThreadCollator
from pasta.data.linearise import Example, make_example
from pasta.engine.masks import to_model_masks
from pasta.lang import Codec
from pasta.training.masks import install_thread_masks
from pasta.training.run import RunContext
from pasta.training.sft import trl_config
from pasta.training.trainer import PlainHeadTrainer, ThreadTrainer
from tests.support.documents import random_document
from tests.support.models import CONFIGS
from tests.support.packed import to_dataset
from tests.support.tokenizers import byte_level
from tests.training.runs import sft_config

TOKENIZER = byte_level()
CODEC = Codec(TOKENIZER)


def _by_hand(model: torch.nn.Module, config: object, example: Example) -> tuple[torch.Tensor, int]:
    """Summed cross-entropy of one document alone, its visibility worked out row by row from the definition."""
    length = len(example)
    visible = torch.tensor(
        [
            [
                k <= q and bool(example.sees[example.segment_ids[q]] >> example.segment_ids[k] & 1)
                for k in range(length)
            ]
            for q in range(length)
        ]
    )
    positions = torch.tensor([example.position_ids])
    mask = to_model_masks(config, visible[None], positions, positions, torch.float32)
    logits = model(
        input_ids=torch.tensor([example.input_ids]), position_ids=positions, attention_mask=mask
    ).logits[0]
    targets = torch.tensor(example.shift_labels)
    kept = targets != -100
    return F.cross_entropy(logits[kept], targets[kept], reduction="sum"), int(kept.sum())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "granite", "smollm3"])
@pytest.mark.parametrize("trainer_class", [ThreadTrainer, PlainHeadTrainer])
def test_loss_and_gradient_equal_a_computation_by_hand(
    tmp_path: Path, family: str, trainer_class: type[ThreadTrainer]
) -> None:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = CONFIGS[family]
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    examples = [
        make_example(CODEC, [{"role": "user", "content": "Hi"}], random_document(seed, depth=3), "pasta")
        for seed in range(6)
    ]
    install_thread_masks(model)
    rows = to_dataset(examples, row_length=400)
    context = RunContext(tmp_path, tmp_path, False, lambda metrics, checkpoint: None)
    trainer = trainer_class(
        model=model,
        args=trl_config(sft_config(tmp_path, precision="fp32"), context),
        train_dataset=rows,
        data_collator=ThreadCollator(pad_id=0),
        processing_class=TOKENIZER,
    )
    model.train()
    batch = ThreadCollator(pad_id=0)(list(rows))
    num_items = (batch["labels"] != -100).sum()
    loss = trainer.compute_loss(model, batch, num_items_in_batch=num_items)
    loss.backward()
    gradient = model.get_input_embeddings().weight.grad.clone()
    model.zero_grad()
    sums, counts = zip(*(_by_hand(model, config, example) for example in examples), strict=True)
    expected = torch.stack(sums).sum() / sum(counts)
    expected.backward()
    assert sum(counts) == int(num_items)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.get_input_embeddings().weight.grad, gradient, atol=1e-5, rtol=1e-4)
