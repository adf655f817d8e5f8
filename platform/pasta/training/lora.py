"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) through PEFT: made, trained with new tokens' rows, merged."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, PeftModel
from transformers import PreTrainedModel

ADAPTER_DIR = "adapter"


@dataclass(frozen=True, slots=True)
class LoraSection:
    """Adapters of ``rank`` on the linear layers named in ``targets``, their product scaled by ``alpha``/``rank``.

    The finished model is whole, adapters merged, so that anything can load it; ``keep_adapter`` puts the adapter
    beside it, in ``adapter/``.
    """

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: Literal["all-linear"] | list[str] = "all-linear"
    keep_adapter: bool = False

    def __post_init__(self) -> None:
        for name in ("rank", "alpha"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected a positive number")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout {self.dropout}: expected a share from 0 to below 1")


def peft_config(section: LoraSection, new_tokens: list[int] | None = None) -> LoraConfig:
    """PEFT's configuration of ``section``. The embedding rows of ``new_tokens`` are trained in full, the others not."""
    return LoraConfig(
        r=section.rank,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=section.targets if isinstance(section.targets, str) else list(section.targets),
        trainable_token_indices=new_tokens,
        task_type="CAUSAL_LM",
        bias="none",
    )


def merge(base: PreTrainedModel, adapter: Path) -> Any:
    """``base`` with the adapter saved in the directory ``adapter`` merged into its weights."""
    with torch.no_grad():
        return PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
