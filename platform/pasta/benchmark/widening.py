"""Widening: makes a larger model that answers as a small one does (Net2Net, Chen, Goodfellow and Shlens 2016).

The cost of a step follows from a model's size; the tokens follow from its weights. A widened model costs what the large
one costs, and has the answers, threads and drafts of the small one. So cost and answers can be measured together, where
no large model was trained.

The states of the small model are the first ``d`` of ``D`` dimensions, the others are zero. Embeddings and what is added
to them grow by sqrt(D / d), so that RMSNorm sees the same mean square; the norms' weights shrink by as much. A head
with ``r`` times as many dimensions holds the small head's where rotary embedding turns both alike: its dimension ``r *
i`` turns as dimension ``i`` of the small one. Added heads, units and layers get random weights where they read zeros or
are not read, so that none are cheaper than others, and zeros where they would change the output.
"""

import hashlib
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from pasta.benchmark.settings import Settings
from pasta.engine.families import read_model_config
from pasta.engine.head_files import HeadShape, weights_fingerprint
from pasta.engine.heads import DraftHeads, read_heads, write_heads
from pasta.errors import UserError
from pasta.stages.lock import sole_writer

#: Standard deviation of the random weights: small beside the weights that matter, so that these are rounded as before.
_SPREAD = 0.01
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
_SAME = ("model_type", "hidden_act", "rms_norm_eps", "sliding_window", "tie_word_embeddings")
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
)


def why_not_widened(small: Any, large: Any) -> str:
    """Why a model of the configuration ``small`` cannot be widened to ``large``; empty if it can."""
    if small.model_type != "qwen3":
        return f"model_type {small.model_type!r}, expected 'qwen3'"
    for name in _SAME:
        if (here := getattr(large, name, None)) != (wanted := getattr(small, name)):
            return f"{name} {here!r}, expected {wanted!r} as in the model that is widened"
    if large.head_dim % small.head_dim:
        return f"head_dim {large.head_dim}, expected a multiple of {small.head_dim}"
    for name in _SIZES:
        if (here := getattr(large, name)) < (wanted := getattr(small, name)):
            return f"{name} {here}, expected at least {wanted}"
    if large.rope_parameters != small.rope_parameters:
        return f"rope_parameters {large.rope_parameters}, expected {small.rope_parameters}"
    if large.layer_types[: small.num_hidden_layers] != small.layer_types:
        return (
            f"layer_types {large.layer_types[: small.num_hidden_layers]}, expected {small.layer_types} first"
        )
    groups = [config.num_attention_heads // config.num_key_value_heads for config in (small, large)]
    if groups[0] != 1 or large.num_key_value_heads < small.num_attention_heads:
        return f"num_key_value_heads {large.num_key_value_heads}, expected one for each of the small model's heads"
    return ""


def with_widened(settings: Settings, say: Callable[[str], None]) -> Settings:
    """The settings with the models widened, if they are to be; they are made on first use, beside the results. Raises
    ``UserError`` if they cannot be."""
    if settings.widened is None:
        return settings
    large = read_model_config(settings.widened)
    for name in ("twin", "pasta"):
        if why := why_not_widened(read_model_config(settings.models / name), large):
            raise UserError(
                f"--widened: the model in {settings.models / name} cannot be widened to it: {why}"
            )
    made = settings.out.parent / "widened"
    return replace(settings, models=widened_models(settings.models, settings.widened, made, say))


def widened_models(models: Path, shape: Path, made: Path, say: Callable[[str], None]) -> Path:
    """The directory in ``made`` that holds ``twin`` and ``pasta`` of ``models``, widened to the configuration in the
    file ``shape`` on first use."""
    large = read_model_config(shape)
    weights = [weights_fingerprint(models / name) for name in ("twin", "pasta")]
    digest = hashlib.sha256("".join([*weights, large.to_json_string()]).encode()).hexdigest()[:12]
    directory = made / f"{shape.stem}-{digest}"
    for name in ("twin", "pasta"):
        write = partial(widen, models / name, large)
        make_directory(directory / name, f"the {name} widened to {shape.stem}", say, write)
    return directory


def make_directory(
    directory: Path, what: str, say: Callable[[str], None], write: Callable[[Path], None]
) -> None:
    """Have a model directory written, whole or not at all, if it is not there. Raises ``UserError`` if another run is
    writing it: it lies beside the results, where several runs share it."""
    if any(directory.glob("*")):
        return
    with sole_writer(directory, "--out", "another run is making it; wait for it, or name another folder"):
        if any(directory.glob("*")):  # another run has made it since
            return
        say(f"making {what} in {directory}")
        part = directory.with_name(f"{directory.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        write(part)
        part.rename(directory)


def widen(source: Path, large: Any, directory: Path) -> None:
    """Write the model in ``source``, widened to the configuration ``large``, to ``directory``, with its tokenizer and
    draft heads. The caller has asked ``why_not_widened``."""
    small = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    torch.manual_seed(0)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(large, dtype=torch.bfloat16)
    state = _widened(small.state_dict(), small.config, large, model.state_dict())
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    model.save_pretrained(directory)
    copy_tokenizer(source, directory)
    heads = read_heads(source, small.config.hidden_size, small.config.vocab_size)
    if heads is not None:
        write_heads(directory, _widened_heads(heads, large), {"widened": True})


def copy_tokenizer(source: Path, directory: Path) -> None:
    """Copy a model's tokenizer to another model's directory."""
    for name in _TOKENIZER:
        if (source / name).exists():
            shutil.copy(source / name, directory / name)


def _widened(
    state: dict[str, Tensor], small: Any, large: Any, shapes: dict[str, Tensor]
) -> dict[str, Tensor]:
    growth = math.sqrt(large.hidden_size / small.hidden_size)
    d, group = small.hidden_size, large.num_attention_heads // large.num_key_value_heads
    units = torch.arange(small.intermediate_size)
    stretch, half = large.head_dim // small.head_dim, small.head_dim // 2
    dims = torch.arange(small.head_dim)
    dims = dims % half * stretch + dims // half * half * stretch
    heads = torch.arange(small.num_attention_heads)[:, None] * large.head_dim
    # Each of the small model's heads is the first of a group that shares its keys and values.
    keys, queries = (heads + dims).flatten(), (heads * group + dims).flatten()
    rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "gate_proj": units, "up_proj": units}
    columns = {"o_proj": queries, "down_proj": units}
    read = {"o_proj": len(heads) * group * large.head_dim, "down_proj": len(units)}
    out: dict[str, Tensor] = {}
    device = "cuda" if torch.cuda.is_available() else "cpu"  # a GPU draws billions of weights in no time
    for name, shape in shapes.items():
        kind, old = name.split(".")[-2], state.get(name)
        if kind.endswith("norm"):
            new = torch.ones(shape.shape)
            if old is not None:
                if kind == "q_norm":
                    new[dims] = old
                elif kind == "k_norm":  # zeros among a head's dimensions scale its scores down: undo that
                    new[dims] = old / math.sqrt(stretch)
                else:  # the last one also for the output layer
                    new[: len(old)] = old / growth ** (2 if kind == "norm" else 1)
        else:
            new = torch.randn(shape.shape, device=device).mul_(_SPREAD).cpu()
            if kind in ("embed_tokens", "lm_head"):
                assert old is not None
                new[: len(old)] = 0.0
                new[:, :d] = old[small.pad_token_id] * growth  # as unlikely as in the small model
                new[: len(old), :d] = old * growth
            elif kind in rows:
                new[:, :d] = 0.0  # it reads added dimensions, which are zero
                if old is not None:
                    new[rows[kind], :d] = old
            elif old is not None:
                new[:, : read[kind]] = 0.0  # it writes zeros: the states stay as they are
                new[:d, columns[kind]] = old * growth
        out[name] = new if kind.endswith("norm") else new.to(torch.bfloat16)
    return out


def _widened_heads(heads: DraftHeads, large: Any) -> DraftHeads:
    """The heads for states that are divided by the growth and embeddings that are multiplied by it.

    They guess a quarter of the tokens, all of the small model's among them.
    """
    shape = heads.shape
    d, wide = shape.hidden_size, large.hidden_size
    growth = math.sqrt(wide / d)
    guessed = max(large.vocab_size // 4, shape.vocab_size)
    out = DraftHeads(HeadShape(wide, large.vocab_size, shape.depth, shape.width * wide // d, guessed))
    old, new = heads.state_dict(), out.state_dict()
    for depth in range(shape.depth):
        up = new[f"up.{depth}.weight"].normal_(std=_SPREAD)
        down = new[f"down.{depth}.weight"].normal_(std=_SPREAD)
        for part, kept in enumerate(old[f"up.{depth}.weight"].split(d, dim=1)):
            own = up[:, part * wide : part * wide + d]
            own[:] = 0.0
            own[: shape.width] = kept * (growth if part == 0 else 1 / growth)
        down[:, : shape.width] = 0.0
        down[:d, : shape.width] = old[f"down.{depth}.weight"] / growth
    return out
