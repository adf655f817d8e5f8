"""A preference run of seconds: a tiny model with random weights, pairs of nested documents, one directory."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig

from pasta.config import parse_config
from pasta.data.linearise import Example, make_example
from pasta.data.pairs import pair_of
from pasta.engine.masks import to_model_masks
from pasta.interpreter import UNBOUNDED, Interpreter, Limits
from pasta.lang import Codec, to_text
from pasta.rows import read_rows
from pasta.training.preference_config import PreferenceConfig
from tests.support.documents import random_document
from tests.support.tokenizers import byte_level

TOKENIZER = byte_level()
CODEC = Codec(TOKENIZER)


def save_tiny_model(directory: Path, seed: int = 0, **changes: Any) -> Path:
    """A Llama of a few thousand parameters with random weights, and its tokenizer."""
    torch.manual_seed(seed)
    # Weights large enough that attention matters and a wrong mask shows.
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(
        vocab_size=512,
        **sizes,
        num_key_value_heads=2,
        initializer_range=0.2,
        tie_word_embeddings=True,
        **changes,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    TOKENIZER.save_pretrained(directory)
    return directory


def pair_line(seed: int) -> dict[str, Any]:
    """One line of a file of pairs, with a key that training does not know."""
    return {
        "messages": [{"role": "user", "content": f"Question {seed}?"}],
        "chosen": to_text(random_document(2 * seed)),
        "rejected": to_text(random_document(2 * seed + 1)),
        "scores": [1.5, 0.5],
    }


def preference_dict(directory: Path, num_pairs: int = 4, **recipe: Any) -> dict[str, Any]:
    """The YAML of a tiny run, with its model and pairs written to ``directory``."""
    if not (directory / "start").exists():
        save_tiny_model(directory / "start")
        stage = directory / "stage"
        stage.mkdir()
        lines = [json.dumps(pair_line(seed)) for seed in range(num_pairs)]
        (stage / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return {
        "name": "tiny",
        "output_dir": str(directory / "model"),
        "run_dir": str(directory / "runs"),
        "model": {"init_from": str(directory / "start"), "attention": "eager", "save_dtype": "float32"},
        "data": {"source": str(directory / "stage"), "max_length": 1024},
        "objective": {},
        "optimisation": {"learning_rate": 1e-3, "rows": 2, "max_steps": 2, "precision": "fp32", **recipe},
        "schedule": {"log_steps": 1, "save_steps": 0},
        "workers": {"num_workers": 2, "use_gpu": False},
        "tracking": {"mode": "disabled"},
    }


def preference_config(data: dict[str, Any]) -> PreferenceConfig:
    """The same as a configuration."""
    return parse_config(data, PreferenceConfig, "tiny.yaml")


def write_config(directory: Path, config: dict[str, Any]) -> Path:
    """``config`` as a YAML file."""
    path = directory / "preference.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def logp_by_hand(model: nn.Module, example: Example) -> Tensor:
    """Summed log-probability of an answer's targets, each among what an engine may choose at its place."""
    logits, targets = logits_by_hand(model, example)
    barred = barred_by_hand(example, UNBOUNDED, logits.shape[-1])
    return -F.cross_entropy(
        logits.masked_fill(barred, -torch.inf), targets, ignore_index=-100, reduction="sum"
    )


def barred_by_hand(example: Example, limits: Limits, vocab_size: int) -> Tensor:
    """What may not be chosen at each row [L, V]; nothing is barred where nothing is chosen."""
    prompt = next(row for row, target in enumerate(example.shift_labels) if target >= 0) + 1
    unbounded = replace(limits, max_tokens=1 << 30)
    interpreter = Interpreter(CODEC.grammar, unbounded, example.input_ids[:prompt], strict=False)
    barred = torch.zeros(len(example), vocab_size, dtype=torch.bool)
    stack = [0]
    for token, source in zip(example.input_ids[prompt:], sources(example)[prompt:], strict=True):
        if token == CODEC.control.async_open:
            stack.append(interpreter.threads[stack[-1]].children[-1][1])
            continue
        allowed = interpreter.allowed(stack[-1])
        barred[source] = torch.tensor([not allowed.permits(n, CODEC.grammar) for n in range(vocab_size)])
        barred[source, token] = False
        interpreter.emit(stack[-1], token)
        if token == CODEC.control.async_close:
            stack.pop()
    return barred


def sources(example: Example) -> list[int]:
    """For each token the row that predicts it, the last one of its thread; -1 if none does."""
    control = CODEC.control
    found, stack, previous = [], [], -1
    for at, token in enumerate(example.input_ids):
        if token == control.async_open:
            stack.append(previous)
            found.append(-1)
            previous = at
            continue
        found.append(previous)
        previous = stack.pop() if token == control.async_close else at
    return found


def logps_by_hand(model: nn.Module, example: Example) -> Tensor:
    """Log-probability of the target of each row that has one."""
    logits, targets = logits_by_hand(model, example)
    kept = targets >= 0
    return logits[kept].log_softmax(-1).gather(1, targets[kept][:, None])[:, 0]


def logits_by_hand(model: nn.Module, example: Example) -> tuple[Tensor, Tensor]:
    """Logits [L, V] and targets [L] of an answer's rows, visibility worked out row by row from the definition."""
    length = len(example)
    visible = [
        [k <= q and bool(example.sees[s] >> example.segment_ids[k] & 1) for k in range(length)]
        for q, s in enumerate(example.segment_ids)
    ]
    positions = torch.tensor([example.position_ids])
    mask = to_model_masks(model.config, torch.tensor([visible]), positions, positions, torch.float32)
    ids = torch.tensor([example.input_ids])
    logits = model(input_ids=ids, position_ids=positions, attention_mask=mask).logits[0]
    return logits, torch.tensor(example.shift_labels)


def pair_examples(path: Path) -> list[tuple[Example, Example]]:
    """The linearised pairs of a file."""
    return [
        tuple(make_example(CODEC, pair.messages, side, "pasta") for side in (pair.chosen, pair.rejected))
        for pair in map(pair_of, read_rows(path))
    ]


def bonbon_by_hand(
    model: nn.Module, reference: nn.Module, pairs: list[tuple[Example, Example]], alpha: float, samples: int
) -> Tensor:
    """The mean BoNBoN loss of ``pairs``, written out from the paper's formulas."""
    aim = (samples - 1) * sum(1 / k for k in range(1, samples))  # 1/(2β)
    losses = []
    for chosen, rejected in pairs:
        best, worst = logp_by_hand(model, chosen), logp_by_hand(model, rejected)
        with torch.no_grad():
            best_0, worst_0 = logp_by_hand(reference, chosen), logp_by_hand(reference, rejected)
        delta = (best - best_0) - (worst - worst_0)
        losses.append(-alpha * best + (1 - alpha) * (delta - aim) ** 2)
    return torch.stack(losses).mean()
