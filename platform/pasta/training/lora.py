"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) through PEFT: made, trained with new tokens' rows, merged."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from transformers import PreTrainedModel

from pasta.training.config import LoraSection

ADAPTER_DIR = "adapter"


def peft_config(section: LoraSection, rows: dict[str, list[int]] | None = None) -> LoraConfig:
    """PEFT's configuration of ``section``. The ``rows`` of embedding and head are trained in full, by module name."""
    return LoraConfig(
        r=section.rank,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=section.targets if isinstance(section.targets, str) else list(section.targets),
        trainable_token_indices=rows or None,
        task_type="CAUSAL_LM",
        bias="none",
    )


def new_rows(model: PreTrainedModel, new_ids: list[int]) -> dict[str, list[int]]:
    """The rows of ``new_ids`` in the model's embedding, and in its head unless they share their weights."""
    if not new_ids:
        return {}
    modules = [model.get_input_embeddings()]
    if not model.config.tie_word_embeddings:
        modules.append(model.get_output_embeddings())
    names = {id(module): name for name, module in model.named_modules()}
    return {names[id(module)].rpartition(".")[2]: list(new_ids) for module in modules}


def merge_adapter(base: PreTrainedModel, adapter: Path) -> Any:
    """``base`` with the adapter saved in the directory ``adapter`` merged into its weights."""
    with torch.no_grad():
        return PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
