"""Measures what thread masks cost a training step, compared with plain causal training on the same rows."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from datasets import load_from_disk
from torch import Tensor, nn

from pasta.data.collate import ThreadCollator
from pasta.data.dataset import prepare_data
from pasta.errors import UserError
from pasta.training.config import SftConfig
from pasta.training.masks import install_thread_masks
from pasta.training.model import build_model, make_tokenizer
from pasta.training.precision import uses_bfloat16

THREADS = "threads"
#: The attention implementations of transformers that plain training may choose from.
PLAIN = ("sdpa", "eager")


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One training step: seconds, and tokens that it read (without padding)."""

    seconds: float
    tokens: int


class MaskCost:
    """Trains one model on one device in turn under thread masks (``THREADS``, with the configuration's attention) and
    as plain causal language model, rows as documents without threads (``PLAIN``, by attention implementation).

    All ways see the same rows in the same order: forward, backward, clipping and AdamW, in the configuration's
    precision, on ``optimisation.rows`` rows at a time. Raises UserError for a model or data that cannot be read.
    """

    def __init__(self, config: SftConfig, cache_dir: Path, device: torch.device) -> None:
        tokenizer = make_tokenizer(config.model)
        data = prepare_data(config.data, tokenizer, cache_dir)
        self._rows = load_from_disk(str(data.path / "train"))
        self._collate = ThreadCollator(pad_id=int(tokenizer.pad_token_id), multiple=32)
        self._options, self._device = config.optimisation, device
        self._bf16 = uses_bfloat16(config.optimisation, use_gpu=device.type == "cuda")
        self._model = build_model(config.model, tokenizer, config.optimisation.seed).to(device).train()
        self._attention = {THREADS: config.model.attention, **{name: name for name in PLAIN}}
        install_thread_masks(self._model)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=config.optimisation.learning_rate)

    @property
    def num_batches(self) -> int:
        """How many batches the data has."""
        return len(self._rows) // self._options.rows

    def round(self, number: int) -> dict[str, TrainingStep]:
        """A step of every way on batch ``number``; the order changes with the number."""
        size = self._options.rows
        batch = self._collate(self._rows.select(range(number * size, (number + 1) * size)))
        batch = {name: value.to(self._device) for name, value in batch.items()}
        ways = list(self._attention)
        first = number % len(ways)
        return {way: self._step(way, batch) for way in ways[first:] + ways[:first]}

    def _step(self, way: str, batch: Mapping[str, Tensor]) -> TrainingStep:
        self._model.set_attn_implementation(self._attention[way])
        wanted = {name: batch[name] for name in ("input_ids", "attention_mask", "shift_labels", "labels")}
        if way == THREADS:
            wanted |= {name: batch[name] for name in ("position_ids", "segment_ids", "sees")}
        self._wait()
        begun = time.perf_counter()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            loss = self._model(**wanted, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._wait()
        return TrainingStep(time.perf_counter() - begun, int(batch["attention_mask"].sum()))

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def measure_mask_cost(
    config: SftConfig, cache_dir: Path, device: torch.device, rounds: int, warm_up: int = 2
) -> list[dict[str, TrainingStep]]:
    """``rounds`` rounds of ``MaskCost`` after a warm-up. Raises UserError if the data has too few rows."""
    # Held-out documents and generated answers are no part of a step.
    config = replace(
        config,
        data=replace(config.data, eval_documents=0, eval_answers=0),
        schedule=replace(config.schedule, eval_steps=0),
    )
    bench = MaskCost(config, cache_dir, device)
    if bench.num_batches < rounds + warm_up:
        raise UserError(
            f"--rounds {rounds}: the data has {bench.num_batches} batches of {config.optimisation.rows} rows; "
            f"expected at most {bench.num_batches - warm_up}"
        )
    return [bench.round(number) for number in range(warm_up + rounds)][warm_up:]


def tokens_per_second(steps: Sequence[TrainingStep]) -> float:
    """Tokens a second, over all steps together."""
    return sum(step.tokens for step in steps) / sum(step.seconds for step in steps)
