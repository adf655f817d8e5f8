"""The BoNBoN objective (Gui et al. 2024, arXiv 2406.00832) in TRL's DPOTrainer, on thread-aware log-probabilities.

The only module that uses private APIs of TRL, written against trl 1.16.0. tests/training/test_private.py fails, and
names that version, when one of them is gone:

- ``DPOTrainer._prepare_dataset``, overridden: our rows are tokenised already.
- ``DPOTrainer.precompute_ref_logps``: free the reference model once its log-probabilities are in the data.
- ``DPOTrainer._precompute_ref_logps``, overridden, and ``_precompute_model_hash``: log-probabilities are kept piece by
  piece as they are computed, and found again for the same reference alone.
- ``DPOTrainer._metrics`` and ``compute_ref_log_probs``; the forward's ``fused_lm_head=True``, which yields
  ``log_probs``: compute BoNBoN's loss, and log it as TRL's own losses are. ``permitted_pairs`` takes the place of that
  forward, since it scores tokens in the whole vocabulary.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset, concatenate_datasets
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.data import DataLoader

from pasta.data.pairs import REFERENCE
from pasta.files import write_whole
from pasta.stages.progress import Progress
from pasta.training.permitted_pairs import PermittedPairCollator, score_permitted
from pasta.training.without_wandb import without_wandb

with without_wandb():
    from trl import DPOTrainer

#: Batches, of all ranks together, whose log-probabilities of the reference are kept as one file.
PIECE_BATCHES = 128


def bonbon_beta(num_samples: int) -> float:
    """β of the best and the worst of n samples: 1/(2(n−1)·H(n−1)), H the harmonic numbers (section 4 of the paper).

    1/(2β) is then the log-ratio that the best-of-n policy has on average. Raises ValueError for n < 2.
    """
    if num_samples < 2:
        raise ValueError(f"num_samples {num_samples}: expected at least 2")
    harmonic = sum(1.0 / k for k in range(1, num_samples))
    return 1.0 / (2.0 * (num_samples - 1) * harmonic)


def bonbon_loss(chosen_logps: Tensor, delta: Tensor, alpha: float, beta: float) -> Tensor:
    """α·(−log p(y⁺)) + (1−α)·(Δ − 1/(2β))² of each pair, [N].

    ``chosen_logps`` [N] are the policy's log-probabilities of the better answers, summed over their tokens; ``delta``
    [N] is the chosen minus the rejected log-ratio to the reference. Nothing is divided by length: the optimum 1/(2β)
    holds for sums.
    """
    return alpha * -chosen_logps + (1.0 - alpha) * (delta - 1.0 / (2.0 * beta)) ** 2


def shares_digest(model: nn.Module) -> str:
    """A digest of this rank's shares of the weights that ZeRO-3 has partitioned; empty if there are none."""
    shares = [weight.ds_tensor for weight in model.parameters() if hasattr(weight, "ds_tensor")]
    digest = hashlib.sha256()
    for share in shares:
        digest.update(share.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest() if shares else ""


class TokenisedTrainer(DPOTrainer):
    """DPOTrainer on rows of token ids."""

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset


class PreferenceTrainer(TokenisedTrainer):
    """DPOTrainer on pairs that are linearised already; ``bonbon_alpha`` chooses BoNBoN instead of TRL's losses.
    Precomputed log-probabilities are kept in ``kept_dir``, the directory of these pairs alone.

    Rows come from ``PermittedPairCollator``. Their targets are aligned (``shift_labels``): with the model's thread
    masks, log-probabilities are those of the threads, and they are taken among what an engine may choose.
    """

    def __init__(
        self,
        *args: Any,
        data_collator: PermittedPairCollator,
        kept_dir: Path,
        bonbon_alpha: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.bonbon_alpha, self._kept_dir = bonbon_alpha, kept_dir
        self._table, self._scored = data_collator.table, set[int]()
        super().__init__(*args, data_collator=data_collator, **kwargs)
        self._score_permitted()

    def _score_permitted(self) -> None:
        """Have policy and reference score tokens among what an engine may choose."""
        for wrapped in (self.model, self.ref_model):
            if wrapped is None:
                continue
            model = self.accelerator.unwrap_model(wrapped)
            model = model.get_base_model() if isinstance(model, PeftModel) else model
            if id(model) not in self._scored:
                self._scored.add(id(model))
                score_permitted(model, self._table)

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """``dataset`` with the reference's log-probabilities. They are kept beside the data in pieces, each a file that
        is whole or not there: a run that is cut goes on with the pieces that are missing."""
        self._score_permitted()  # while TRL makes the trainer
        directory = self._kept_dir / f"reference-{self._reference_digest(batch_size)}"
        count, size = len(dataset), PIECE_BATCHES * batch_size
        pieces = {
            directory / f"{name}-{first:08d}.float32": range(first, min(first + size, count))
            for first in range(0, count, size)
        }
        there = [{path for path in pieces if path.is_file()}]
        broadcast_object_list(there)  # rank 0's: all ranks compute the same pieces, whoever else writes some
        missing = {path: rows for path, rows in pieces.items() if path not in there[0]}
        progress = None
        if missing and self.accelerator.is_main_process:
            what = f"log-probabilities of the reference ({name})"
            progress = Progress(what, count, "pairs", count - sum(map(len, missing.values())))
        for path, rows in missing.items():
            logps = self._reference_logps(dataset.select(rows), batch_size)
            if progress is not None:
                write_whole(path, logps.numpy().tobytes())
                progress.add(len(rows))
        self.accelerator.wait_for_everyone()
        kept = np.concatenate([np.fromfile(path, np.float32).reshape(2, -1) for path in pieces], axis=1)
        columns = Dataset.from_dict(dict(zip(REFERENCE, kept, strict=True)))
        return concatenate_datasets([dataset, columns], axis=1)

    def _reference_digest(self, batch_size: int) -> str:
        """A digest of the reference's weights and of what log-probabilities are computed with, the same on all ranks.
        Under ZeRO-3, where weights look empty, TRL's own is the same for all models."""
        assert self.ref_model is not None, "without one the policy would be wrapped in DeepSpeed twice"
        weights = shares_digest(self.ref_model) or self._precompute_model_hash
        attention = self.accelerator.unwrap_model(self.ref_model).config._attn_implementation
        values = (weights, self.accelerator.mixed_precision, self.is_deepspeed_enabled, attention, batch_size)
        digest = [hashlib.sha256(repr(values).encode()).hexdigest()[:16]]
        broadcast_object_list(digest)
        return digest[0]

    def _reference_logps(self, rows: Dataset, batch_size: int) -> Tensor:
        """The reference's log-probabilities [2, N] of N pairs, those of the chosen answers first; on all ranks."""
        loader = self.accelerator.prepare(DataLoader(rows, batch_size, collate_fn=self.data_collator))
        found = []
        for batch in loader:
            logps = torch.stack(self.compute_ref_log_probs(self.ref_model, batch), dim=1)  # [batch, 2]
            found.append(self.accelerator.gather_for_metrics(logps).float().cpu())
        return torch.cat(found).T

    def forget_reference(self) -> None:
        """Free the reference model; its log-probabilities are in the data set."""
        assert self.precompute_ref_logps, "without it no log-probabilities are left"
        self.ref_model = None

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        if self.bonbon_alpha is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        assert not return_outputs, "there are no logits to return"
        policy = self._policy_logps(model, inputs)  # [2N]
        if self.precompute_ref_logps:
            reference = torch.cat([inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]])
        else:
            reference_model = self.model if self.ref_model is None else self.ref_model
            reference = torch.cat(self.compute_ref_log_probs(reference_model, inputs))
        chosen_ratios, rejected_ratios = (policy - reference).chunk(2)
        chosen_logps, rejected_logps = policy.chunk(2)
        delta = chosen_ratios - rejected_ratios
        losses = bonbon_loss(chosen_logps, delta, self.bonbon_alpha, self.beta)
        self._record(chosen_logps, rejected_logps, chosen_ratios, rejected_ratios)
        return losses.mean()

    def _policy_logps(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """Summed log-probabilities [2N] of the answers, the chosen ones first."""
        others = {"completion_mask", "ref_chosen_logps", "ref_rejected_logps"}
        values: dict[str, Tensor] = {name: value for name, value in inputs.items() if name not in others}

        def logps(own: Mapping[str, Tensor]) -> Tensor:
            found: Tensor = model(**own, use_cache=False, fused_lm_head=True).log_probs
            return found.sum(dim=1)

        if self.bonbon_alpha != 1.0:
            return logps(values)
        # No part of the loss: the rejected answers are there for the figures, and need no gradient.
        chosen, rejected = ({name: value.chunk(2)[side] for name, value in values.items()} for side in (0, 1))
        with torch.no_grad():
            rejected_logps = logps(rejected)
        return torch.cat([logps(chosen), rejected_logps])

    def _record(
        self, chosen: Tensor, rejected: Tensor, chosen_ratios: Tensor, rejected_ratios: Tensor
    ) -> None:
        """Under the names that TRL's own losses use; rewards are β times log-ratios, so that 0.5 is BoNBoN's aim."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        # Of all ranks; in evaluation without the pairs that fill up their last batches.
        gather = self.accelerator.gather if self.model.training else self.accelerator.gather_for_metrics
        delta = chosen_ratios - rejected_ratios
        for name, values in {
            "rewards/chosen": self.beta * chosen_ratios,
            "rewards/rejected": self.beta * rejected_ratios,
            "rewards/margins": self.beta * delta,
            "rewards/accuracies": (delta > 0).float(),
            "logps/chosen": chosen,
            "logps/rejected": rejected,
        }.items():
            metrics[name] += gather(values.detach()).tolist()  # TRL logs their mean
