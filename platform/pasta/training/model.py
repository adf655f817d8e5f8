"""Builds the model to train: from scratch or from a directory, with rows for the control tokens."""

import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from pasta.config import load_config
from pasta.data.atlas.tokenizer import train_tokenizer
from pasta.data.atlas_keys import ATLAS
from pasta.data.tokenizers import check_source, read_config, read_tokenizer
from pasta.engine.families import check_architecture, pretrained_config, text_part
from pasta.engine.pretrained import read_pretrained
from pasta.engine.snapshots import check_local_weights
from pasta.errors import UserError, first_line, one_line
from pasta.lang import CONTROL_TOKENS, Codec, CodecError, add_control_tokens, has_chat_template
from pasta.lang.positions import Scheme
from pasta.lang.tokenizer import store_scheme, stored_scheme
from pasta.rows import read_json
from pasta.training.config import Architecture, ModelSection
from pasta.training.transformers_private import outside_deepspeed


def make_tokenizer(section: ModelSection) -> PreTrainedTokenizerBase:
    """The run's tokenizer, control tokens added. Raises UserError if there is none or it cannot carry them."""
    source = section.tokenizer or section.init_from
    assert source is not None, "ModelSection guarantees it"
    if source == ATLAS:
        with tempfile.TemporaryDirectory() as directory:
            tokenizer = train_tokenizer(directory)
    else:
        key = "model.tokenizer" if section.tokenizer else "model.init_from"
        check_source(key, source)
        tokenizer = read_tokenizer(key, source)
        if not has_chat_template(tokenizer):
            raise UserError(
                f"{key}: {source}: its tokenizer has no chat template; expected one, as that of an instruct model with "
                "the same vocabulary: name that model as model.tokenizer"
            )
    add_control_tokens(tokenizer)
    try:
        store_scheme(tokenizer, section.positions or inherited_scheme(section, tokenizer))
    except CodecError as error:
        raise UserError(f"model.init_from: {section.init_from or source}: {error}") from None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    Codec(tokenizer)
    return tokenizer


def inherited_scheme(section: ModelSection, tokenizer: PreTrainedTokenizerBase) -> Scheme:
    """The rule of positions of the model in ``init_from``, or of the tokenizer where the model lies without one."""
    if section.init_from is not None and section.tokenizer is not None:
        with suppress(UserError):
            tokenizer = read_tokenizer("model.init_from", section.init_from)
    return stored_scheme(tokenizer)


def other_positions(section: ModelSection) -> str:
    """A warning line if a run gives the model another rule of positions than ``init_from`` has; else empty."""
    if section.init_from is None or section.positions is None:
        return ""
    try:
        before = stored_scheme(read_tokenizer("model.init_from", section.init_from))
    except UserError:
        return ""
    own = section.positions
    return "" if own == before else f"model.positions: {own} from now on; {section.init_from} has {before}"


def check_trainable(section: ModelSection, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check whether the model can be built. It is cheap, so that errors are found before workers start."""
    if section.architecture is not None:
        scratch = _scratch_config(section.architecture, tokenizer)
        _check_runs(scratch, section.architecture)
        _check_attention(section, scratch)
        return
    assert section.init_from is not None
    config = text_part(read_config("model.init_from", section.init_from))
    check_architecture(config, f"model.init_from: {section.init_from}")
    check_local_weights(section.init_from, "model.init_from")
    _check_attention(section, config)
    if section.tokenizer is not None:
        _require_same_vocabulary(section.init_from, tokenizer)


def trained_tokenizer(section: ModelSection, key: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model that can write annotated answers. Raises UserError naming ``key`` if it cannot."""
    source = str(section.init_from)
    try:
        tokenizer = make_tokenizer(section)
        check_trainable(section, tokenizer)
    except UserError as error:
        raise UserError(str(error).replace("model.init_from", key)) from None
    rows, tokens = pretrained_config(source).vocab_size, 1 + max(tokenizer.get_vocab().values())
    plain = AutoTokenizer.from_pretrained(source).get_vocab()
    if any(token not in plain for token in CONTROL_TOKENS):
        raise UserError(
            f"{key}: {source} has no control tokens in its vocabulary; expected a model that jobs.sft has trained"
        )
    if rows < tokens:
        raise UserError(
            f"{key}: {source} has {rows} embedding rows for {tokens} tokens; model and tokenizer do not belong together"
        )
    return tokenizer


def build_model(section: ModelSection, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """The model in float32, its embedding covering the tokenizer. Raises UserError as ``check_trainable`` does."""
    check_trainable(section, tokenizer)
    if section.architecture is not None:
        torch.manual_seed(seed)
        config = _scratch_config(section.architecture, tokenizer)
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=section.attention, dtype=torch.float32
        )
        _tell_ends(model, tokenizer)
        return model
    model = read_pretrained(
        AutoModelForCausalLM,
        str(section.init_from),
        f"model.init_from: {section.init_from}",
        attn_implementation=section.attention,
        dtype=torch.float32,
    )
    make_room(model, tokenizer, new_token_ids(section, tokenizer))
    _make_savable(model)
    _tell_ends(model, tokenizer)
    return model


def _tell_ends(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Have the generation configuration name every token that answers are trained to end with: other programs stop at
    what it names, and the end of a turn in the chat template may be another token than the tokenizer's end of text."""
    known = model.generation_config
    named = known.eos_token_id if isinstance(known.eos_token_id, list) else [known.eos_token_id]
    if missing := sorted(Codec(tokenizer, sequential=True).eos_ids - {*named}):
        known.eos_token_id = [*(token for token in named if token is not None), *missing]


def _make_savable(model: Any) -> None:
    """Keep only where texts begin and end of a generation configuration that transformers will not save, such as one
    with a temperature and without ``do_sample``: once the trainer has changed it, the first checkpoint would fail."""
    known = model.generation_config
    try:
        known.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig(
            bos_token_id=known.bos_token_id, eos_token_id=known.eos_token_id
        )


def new_token_ids(section: ModelSection, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the tokens that the model in ``init_from`` has never seen, in order. One that lies without a tokenizer has
    seen the tokens of ``tokenizer`` as that lies there.

    Some models have more rows than their tokenizer has tokens: a new token then takes an existing row.
    """
    assert section.init_from is not None
    try:
        seen = read_tokenizer("model.init_from", section.init_from).get_vocab()
    except UserError:
        if section.tokenizer is None or section.tokenizer == ATLAS:
            return []
        seen = read_tokenizer("model.tokenizer", section.tokenizer).get_vocab()
    return sorted(token_id for token, token_id in tokenizer.get_vocab().items() if token not in seen)


def make_room(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, new_ids: Sequence[int] = ()) -> int:
    """Give the embedding (and an untied head) a row for every token of ``tokenizer``; returns the rows added.

    Rows added, and those of ``new_ids``, become the mean of the others: zeros or noise would make new tokens far too
    likely or unlikely at first.
    """
    size = max(tokenizer.get_vocab().values()) + 1
    weight = model.get_input_embeddings().weight
    # Under ZeRO-3 a weight is partitioned from the start and looks empty.
    old = int(getattr(weight, "ds_shape", weight.shape)[0])
    if size > old:
        model.resize_token_embeddings(size, mean_resizing=False)
    fresh = sorted({*new_ids, *range(old, size)})
    if fresh:
        # In the same order on all ranks: under ZeRO-3 they gather each weight together.
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            if isinstance(module, nn.Module):
                _set_to_mean(module.weight, fresh)
    return max(size - old, 0)


def _set_to_mean(weight: Any, rows: list[int]) -> None:
    """Make ``rows`` of a weight [V, H] the mean of its other rows."""
    with torch.no_grad(), gathered([weight], modifier_rank=0):
        others = torch.ones(weight.shape[0], dtype=torch.bool, device=weight.device)
        others[rows] = False
        weight[rows] = weight[others].mean(dim=0)


def gathered(weights: list[Any], modifier_rank: int | None = None) -> AbstractContextManager[object]:
    """Have weights that ZeRO-3 has partitioned whole in a block, on every rank; what ``modifier_rank`` changes stays.
    Others are whole already."""
    if not any(hasattr(weight, "ds_id") for weight in weights):
        return nullcontext()
    from deepspeed.runtime.zero import GatheredParameters

    found: AbstractContextManager[object] = GatheredParameters(weights, modifier_rank=modifier_rank)
    return found


def compile_layers(model: Any) -> None:
    """Compile the backbone's layers, each by itself."""
    for layer in model.base_model.layers:
        layer.compile()


def _scratch_config(path: Path, tokenizer: PreTrainedTokenizerBase) -> Any:
    architecture = load_config(path, Architecture)
    check_architecture(architecture, str(path))
    known = set(AutoConfig.for_model(architecture.model_type).to_dict())
    for key in architecture.config:
        if key not in known:
            raise UserError(f"{path}: config: unknown key {key!r} for model type {architecture.model_type}")
    # A vocabulary of a multiple of 64 keeps matrix products aligned; the rows above the tokenizer's stay unused.
    size = -(-(max(tokenizer.get_vocab().values()) + 1) // 64) * 64
    ours = {
        "vocab_size": size,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    for key in ours:
        if key in architecture.config:
            raise UserError(f"{path}: config: {key}: has no place here; it follows from the tokenizer")
    try:
        return AutoConfig.for_model(architecture.model_type, **ours, **architecture.config)
    except Exception as error:  # each class checks its values in its own way
        raise UserError(f"{path}: config: {one_line(str(error))}") from None


def _check_runs(config: Any, path: Path) -> None:
    """Raise UserError for dimensions of which no model can be made, or none that computes: found without weights."""
    try:
        with outside_deepspeed(), torch.device("meta"), torch.no_grad():
            AutoModelForCausalLM.from_config(config)(torch.zeros(1, 2, dtype=torch.long))
    except Exception as error:  # sizes that do not fit together fail wherever they meet
        raise UserError(
            f"{path}: config: no model can be made of it ({type(error).__name__}: {first_line(error)}); expected "
            "dimensions that fit together"
        ) from None


def _check_attention(section: ModelSection, config: Any) -> None:
    """Raise UserError if transformers has this family, but not with this attention: found without weights."""

    def can_be_made(attention: str) -> bool:
        try:
            with outside_deepspeed(), torch.device("meta"):
                AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        except Exception:  # each class checks its values in its own way
            return False
        return True

    if section.attention != "eager" and not can_be_made(section.attention) and can_be_made("eager"):
        raise UserError(
            f"model.attention: {section.attention!r}, but transformers has {config.model_type} without it; expected "
            "eager"
        )


def _require_same_vocabulary(init_from: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Weights trained with one tokenizer are noise under another."""
    path = Path(init_from) / "tokenizer.json"
    if not path.is_file():
        return
    trained = read_json(path, key="model.init_from")["model"]["vocab"]
    ours = tokenizer.get_vocab()
    pairs = (
        trained.items() if isinstance(trained, dict) else ((piece, i) for i, (piece, _) in enumerate(trained))
    )
    wrong = next((token for token, token_id in pairs if ours.get(token) != token_id), None)
    if wrong is not None:
        raise UserError(
            f"model.tokenizer: {init_from} was trained with another vocabulary (token {wrong!r} differs); "
            "leave model.tokenizer out"
        )
