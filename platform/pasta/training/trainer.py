"""TRL's SFTTrainer under thread masks. Evaluation adds losses by kind of token, and figures of generated answers."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase, Trainer
from transformers.trainer_utils import EvalLoopOutput

from pasta.interpreter import IGNORE, TokenKind
from pasta.stages.progress import Progress
from pasta.tracking import Tracker
from pasta.training.callbacks import KIND_NAMES
from pasta.training.held_out import COLUMNS, HeldOut, figures_of, generate_answers
from pasta.training.transformers_private import prepare_inputs
from pasta.training.without_wandb import without_wandb

with without_wandb():
    from trl import SFTTrainer
    from trl.models import unwrap_model_for_generation

EXAMPLES = "eval/examples"


@dataclass(frozen=True, slots=True)
class Generation:
    """Answers to generate at every evaluation: to these documents' prompts, greedy, of up to ``max_tokens`` tokens."""

    documents: Sequence[HeldOut]
    max_tokens: int
    parallel: bool
    tokenizer: PreTrainedTokenizerBase
    tracker: Tracker


class ThreadTrainer(SFTTrainer):
    """SFTTrainer whose evaluation splits the loss by kind of target, and reads what the model writes.

    Evaluation adds ``eval_loss_KIND`` (KIND from ``KIND_NAMES``, where the held-out data has such targets) and
    ``eval_mean_token_accuracy``; with ``generation``, ``eval_well_formed``, ``eval_speedup`` and ``eval_threads``, and
    the table ``EXAMPLES``.
    """

    data_collator: Any

    def __init__(self, *args: Any, generation: Generation | None = None, **kwargs: Any) -> None:
        self._generation = generation
        self._sums: Tensor | None = None
        super().__init__(*args, **kwargs)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        collator = self.data_collator
        self.data_collator = replace(collator, with_kinds=True)
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = collator

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, None, None]:
        """The batch's mean loss; sums by kind go to ``_sums`` [kinds, 3]: losses, right guesses, targets."""
        inputs = prepare_inputs(self, inputs)
        kinds, targets = inputs.pop("kinds"), inputs.pop("shift_labels")
        del inputs["labels"]
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs, use_cache=False).logits
        by_row = torch.zeros(len(logits), len(TokenKind), 3, dtype=torch.float64, device=logits.device)
        for sums, row, row_targets, row_kinds in zip(
            by_row, logits, targets, kinds, strict=True
        ):  # one row's floats at a time
            kept = row_targets != IGNORE
            scores, wanted = row[kept].float(), row_targets[kept]
            losses = F.cross_entropy(scores, wanted, reduction="none")
            right = scores.argmax(-1) == wanted
            values = torch.stack([losses, right.float(), torch.ones_like(losses)], dim=1)
            sums.index_add_(0, row_kinds[kept], values.double())
        # Of all ranks, without the rows that fill up their last batches.
        gathered = self.accelerator.gather_for_metrics(by_row).sum(dim=0)
        self._sums = gathered if self._sums is None else self._sums + gathered
        total = by_row.sum(dim=(0, 1))
        return (total[0] / total[2].clamp(min=1)).float(), None, None

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        self._sums = None
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        output.metrics.update(_prefixed(metric_key_prefix, self._kind_figures()))
        return output

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        figures = super().evaluate(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if added := _prefixed(metric_key_prefix, self._generated_figures()):
            self.log(dict(added))
        return {**figures, **added}

    def _kind_figures(self) -> dict[str, float]:
        assert self._sums is not None, "evaluation has had at least one batch"
        sums = self._sums.cpu()
        total = sums.sum(dim=0)
        return {
            "loss": float(total[0] / total[2].clamp(min=1)),  # the trainer's own is a mean over batches
            "mean_token_accuracy": float(total[1] / total[2].clamp(min=1)),
            **{
                f"loss_{name}": float(sums[kind, 0] / sums[kind, 2])
                for kind, name in KIND_NAMES.items()
                if sums[kind, 2]
            },
        }

    def _generated_figures(self) -> dict[str, float]:
        generation = self._generation
        if generation is None:
            return {}
        rank, count = self.accelerator.process_index, self.accelerator.num_processes
        documents = generation.documents[rank::count]
        # A model that does not yet know how an answer ends writes each to the limit: minutes without another line.
        progress = None if rank else Progress("held-out answers", len(documents), "answers")
        # Under ZeRO-3 this gathers the weights on every rank, so that each answers its share of the prompts.
        with unwrap_model_for_generation(self.model_wrapped, self.accelerator) as model:
            mine = generate_answers(
                model,
                generation.tokenizer,
                documents,
                max_tokens=generation.max_tokens,
                parallel=generation.parallel,
                progress=progress,
            )
        answers = gather_object(mine)
        generation.tracker.table(EXAMPLES, COLUMNS, [astuple(each) for each in answers])
        return figures_of(answers)


def _prefixed(prefix: str, figures: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in figures.items()}


class PlainHeadTrainer(ThreadTrainer):
    """ThreadTrainer with the model's own loss.

    TRL's fused head saves memory on a GPU; on a CPU it scores every row twice and costs a third more time.
    """

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        return Trainer.compute_loss(
            self, model, {**inputs, "use_cache": False}, return_outputs, num_items_in_batch
        )
