"""Compares the engine's sequential decoding with ``generate`` of transformers: same model, prompt and length."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from pasta.benchmark.metrics import Metric, rate_of
from pasta.engine import Engine, EngineConfig, LoadedModel, Request
from pasta.interpreter import Limits
from pasta.markdown import markdown
from pasta.stages.records import Record
from pasta.statistics import bootstrap

#: Name → options of ``generate``, which compiles the forward of a static cache on a GPU, never on a CPU.
VARIANTS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "static, not compiled": {"cache_implementation": "static", "disable_compile": True},
}

#: Attention that transformers chooses itself for families where it is not sdpa: Gemma 2 caps its scores.
_THEIRS = {"gemma2": "eager"}


class GenerateBench:
    """Times both on one model, in turn, prompt by prompt."""

    def __init__(self, loaded: LoadedModel, max_tokens: int, stock: LoadedModel) -> None:
        """``stock`` is the same model as transformers makes it, without packed weights: ``generate`` is timed on it."""
        self.max_tokens, self.stock = max_tokens, stock
        self.engine = Engine(
            loaded, EngineConfig(num_slots=1, slot_tokens=1024, reuse_prefixes=False, drafts=0)
        )
        on_gpu = loaded.model.device.type != "cpu"
        self.variants = {name: v for name, v in VARIANTS.items() if on_gpu or "disable_compile" not in v}

    def measure(self, prompt_ids: Sequence[int]) -> Record:
        """Tokens and seconds of the engine and of each variant of ``generate``, the latter for as many tokens."""
        begun = time.perf_counter()
        limits = Limits(max_tokens=self.max_tokens, max_chunk_tokens=self.max_tokens)
        result = self.engine.generate(Request(prompt_ids=prompt_ids, limits=limits, parallel=False))
        record: Record = {"engine": [result.num_tokens, time.perf_counter() - begun]}
        for name, options in self.variants.items():
            record[name] = self._generate(prompt_ids, result.num_tokens, options)
        return record

    def _generate(self, prompt_ids: Sequence[int], num_tokens: int, options: dict[str, Any]) -> list[float]:
        """[tokens, seconds]. No end-of-text is given, so that it writes exactly ``num_tokens``."""
        model: Any = self.stock.model
        device = model.device
        ids = torch.tensor([list(prompt_ids)], device=device)
        config = GenerationConfig(
            max_new_tokens=num_tokens, do_sample=False, use_cache=True, pad_token_id=0, **options
        )
        stops, ours = model.generation_config.eos_token_id, model.config._attn_implementation
        model.generation_config.eos_token_id = None
        model.set_attn_implementation(_THEIRS.get(model.config.model_type, "sdpa"))
        try:
            begun = time.perf_counter()
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
            new = out[0, ids.shape[1] :].tolist()
            seconds = time.perf_counter() - begun
        finally:
            model.generation_config.eos_token_id = stops
            model.set_attn_implementation(ours)
        assert len(new) == num_tokens
        return [len(new), seconds]


def generate_metrics(records: Sequence[Record], name: str, label: str, target: float) -> list[Metric]:
    """The engine's rate over that of each variant: the geometric mean over prompts and rounds."""
    metrics = []
    for variant in VARIANTS:
        if variant not in records[0]:
            continue
        ratios = [rate_of(record["engine"]) / rate_of(record[variant]) for record in records]
        metrics.append(
            Metric.of(
                f"generate.{name}.{variant}",
                f"engine ÷ generate ({variant} cache), tokens a second, {label}",
                bootstrap(ratios),
                target=target,
                note=f"{len(records)} pairs",
            )
        )
    return metrics


def generate_table(records: Sequence[Record]) -> str:
    """Tokens a second and milliseconds a token of each."""
    rows = []
    for name in ("engine", *VARIANTS):
        if name in records[0]:
            tokens = sum(record[name][0] for record in records)
            seconds = sum(record[name][1] for record in records)
            who = name if name == "engine" else f"generate, {name} cache"
            rows.append([who, f"{tokens / seconds:.1f}", f"{1e3 * seconds / tokens:.2f}", tokens])
    return markdown(["decoder", "tokens a second", "ms a token", "tokens"], rows)
