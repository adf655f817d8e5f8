"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) through PEFT: made, trained with new tokens' rows, merged."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from pasta.engine.families import pretrained_config
from pasta.errors import UserError
from pasta.training.config import LoraSection

ADAPTER_DIR = "adapter"


def check_targets(section: LoraSection | None, model: str | None, *, new_tokens: bool = False) -> None:
    """Raise UserError, naming the key, for a name in ``targets`` that no layer of ``model`` has, or that is its
    embedding or output layer where these take no adapter: where they share their weights, and with ``new_tokens``.

    PEFT adapts the layers that it finds, and says nothing of the others.
    """
    if section is None or isinstance(section.targets, str):
        return
    with torch.device("meta"):  # names alone: no weights are made
        made = AutoModelForCausalLM.from_config(pretrained_config(str(model)))
    embedding, output = made.get_input_embeddings(), made.get_output_embeddings()
    why = ""
    if embedding.weight is output.weight:  # an adapter of one, merged, would change the other
        why = "shares the weights of its embedding and its output layer, which take no adapters"
    elif new_tokens:  # PEFT trains rows of a layer, or adapts it
        why = "gets new tokens, whose rows of embedding and output layer are trained instead"
    names = [name for name, layer in made.named_modules() if isinstance(layer, nn.Linear | nn.Embedding)]
    ends = {name for name, layer in made.named_modules() if why and layer in (embedding, output)}
    for target in section.targets:
        found = {name for name in names if f".{name}".endswith(f".{target}")}
        if not found or found & ends:
            known = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in names if name not in ends))
            raise UserError(
                f"lora.targets: {target!r}: {model} {why if found else 'has no such layer'}; expected all-linear, or "
                f"names such as {known}"
            )


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
