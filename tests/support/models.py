"""Tiny models with random weights, one of each family that the engine supports."""

import functools
import json
from pathlib import Path

from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GraniteConfig,
    LlamaConfig,
    Ministral3Config,
    MinistralConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from pasta.engine import LoadedModel, random_model
from pasta.engine.head_files import SETTINGS, HeadShape
from pasta.engine.heads import DraftHeads, write_heads
from tests.support.tokenizers import byte_level

SMALL = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    # Large enough that attention matters and a wrong mask shows in the logits.
    "initializer_range": 0.3,
}
WINDOW = 24
SLIDING = {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8}

CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "mistral": MistralConfig(**SMALL, head_dim=8, sliding_window=WINDOW),
    "qwen2": Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "qwen3": Qwen3Config(
        **SMALL,
        head_dim=8,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "gemma": GemmaConfig(**SMALL, head_dim=8),
    "gemma2": Gemma2Config(**SMALL, **SLIDING),
    "gemma3": Gemma3TextConfig(
        **SMALL, **SLIDING, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "granite": GraniteConfig(
        **SMALL,
        attention_multiplier=0.3,
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        logits_scaling=2.0,
    ),
    "ministral": MinistralConfig(
        **SMALL,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    # Scores grow with the position: every 16 tokens here, so that a test's answer passes several steps.
    "ministral3": Ministral3Config(
        **SMALL,
        head_dim=8,
        sliding_window=None,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 16.0,
            "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": 0.1,
        },
    ),
    "olmo2": Olmo2Config(**SMALL),
    "olmo3": Olmo3Config(
        **SMALL,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "phi3": Phi3Config(**SMALL, sliding_window=WINDOW, pad_token_id=0, partial_rotary_factor=0.5),
    "smollm3": SmolLM3Config(**SMALL, pad_token_id=0, no_rope_layers=[1, 0, 1]),
}


#: Sizes of an engine whose forward is not recorded: that takes longer than a test's few hundred tokens.
UNRECORDED = {"prefill_chunk": 16, "trace_forward": False}


@functools.cache
def tiny(family: str = "llama", seed: int = 0, packed: bool = False) -> LoadedModel:
    """A model of a few ten thousand parameters, fp32, on the CPU, with the byte-level test tokenizer."""
    return random_model(CONFIGS[family], byte_level(), device="cpu", seed=seed, packed=packed)


def save_misfit_heads(directory: Path) -> str:
    """Put draft heads beside a saved model that are for states of another size; returns what is said of them."""
    settings = directory / SETTINGS
    config = json.loads((directory / "config.json").read_text())
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    write_heads(directory, DraftHeads(HeadShape(hidden + 1, vocabulary, depth=1, width=4)), {})
    return (
        f"draft heads: {settings}: hidden_size {hidden + 1}, but the model has {hidden}; "
        "train them again, or remove them"
    )
