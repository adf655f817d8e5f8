"""TRL's GRPO trainer on the tokens of threads, with answers from our own engine.

GRPOTrainer's public seams carry everything but thread masks, written against trl 1.16.0:

- ``rollout_func`` returns the answers: token ids in storage order. Its ``env_mask`` leaves out what was given and not
  chosen (``<async>``, and the ends of an answer that was cut), its ``logprobs`` are those of the weights that sampled,
  its other fields go to the rewards.
- ``reward_funcs`` and ``args`` do the rest: centred advantages, clipping, the divergence from the reference, the loss.

Not enough is what the trainer does with the ids: ``_get_per_token_logps_and_entropies`` runs the model on them
causally, at positions 0, 1, …, and reads the logits of token i − 1 for token i. No argument carries a mask, positions
or another row to read, and none of the tokens that the engine was not allowed to choose. It is overridden: threads and
constraints follow from the ids alone, so it needs nothing else. All of TRL's uses go through it: policy, old policy and
reference. ``_generate_and_score_completions`` is extended for one key: TRL takes ``old_per_token_logps`` from the
current weights, which of answers that are a batch older are the wrong ones.

tests/training/test_private.py fails, and names that version, when one of the two is gone.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pasta.engine.sampling import ConstraintTable
from pasta.interpreter import Limits
from pasta.lang import TagGrammar
from pasta.rl.batch import thread_batch
from pasta.training.masks import install_thread_masks
from pasta.training.without_wandb import without_wandb

with without_wandb():
    from trl import GRPOTrainer


class ThreadGrpoTrainer(GRPOTrainer):
    """GRPOTrainer whose log-probabilities are those of the threads that wrote an answer.

    ``model`` has thread masks installed (``pasta.training.masks``); the reference gets them here. Answers are sampled
    within ``limits``.
    """

    def __init__(self, *args: Any, grammar: TagGrammar, limits: Limits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        vocab_size = self.accelerator.unwrap_model(self.model).config.get_text_config().vocab_size
        self._constraints = ConstraintTable(grammar, vocab_size, self.accelerator.device)
        self._limits = limits
        if self.ref_model is not None:  # TRL has made it
            install_thread_masks(self.accelerator.unwrap_model(self.ref_model))

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **images: Any,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Log-probabilities and entropies [B, C] of the tokens of answers, 0 for given ones and padding.

        ``input_ids`` [B, P + C] are prompts, padded on the left, and answers of C tokens, padded on the right.
        """
        assert not compute_aux_loss, "no supported family has experts"
        size = batch_size or len(input_ids)
        parts = []
        for at in range(0, len(input_ids), size):
            ids, mask = input_ids[at : at + size].tolist(), attention_mask[at : at + size].bool().tolist()
            batch = thread_batch(
                self._constraints,
                self._limits,
                [_answer(*pair, logits_to_keep) for pair in zip(ids, mask, strict=True)],
                int(self._tokenizer.pad_token_id),
            ).to(input_ids.device)
            with self.accelerator.autocast():
                logits = model(**batch.inputs, logits_to_keep=batch.columns, use_cache=False).logits
            found = batch.log_probs(logits, self._constraints.forbidden, self.temperature)
            parts.append([batch.by_token(values, logits_to_keep) for values in found])
        logps, entropies = (torch.cat(values) for values in zip(*parts, strict=True))
        return logps, entropies if compute_entropy else None, None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if "sampling_per_token_logps" in batch:
            batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
        return batch


def _answer(ids: Sequence[int], mask: Sequence[bool], length: int) -> tuple[list[int], list[int]]:
    """A padded row as prompt and answer, the last ``length`` places."""
    kept = [token if there else None for token, there in zip(ids, mask, strict=True)]
    prompt, answer = kept[:-length], kept[-length:]
    return [t for t in prompt if t is not None], [t for t in answer if t is not None]
