"""Models for the engine: from a directory, or with random weights for measurements."""

import copy
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.distributed import DistributedConfig

from pasta.engine.attention import GROUPED
from pasta.engine.families import (
    check_architecture,
    check_vocabulary,
    context_positions,
    generation_ends,
    pretrained_config,
)
from pasta.engine.fetching import choose_fetching
from pasta.engine.formats import NumberFormat, apply_format, choose_format
from pasta.engine.head_files import fetch_heads, has_heads
from pasta.engine.heads import DraftHeads, HeadRunner, read_heads
from pasta.engine.huge_pages import use_huge_pages
from pasta.engine.pretrained import read_pretrained
from pasta.engine.ranks import Ranks
from pasta.engine.rotary import settle_rotary
from pasta.engine.section import DTYPES, check_dtype, check_format, check_tensor_parallel
from pasta.engine.sharding import use_local_parts
from pasta.engine.snapshots import model_directory
from pasta.engine.supported import resolve_device
from pasta.errors import UserError, first_line
from pasta.lang import Codec, CodecError
from pasta.sizes import EngineSettings

#: Models with fewer parameters are bound by per-op overhead on a CPU, larger ones by reading the weights.
SMALL_MODEL = 60_000_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to decode, its tokenizer and the codec on it. ``format`` is what its linear layers compute in,
    ``packed`` whether in a layout of their own (``load_model``); ``heads`` draft tokens, if any lie beside the model.
    With ``ranks`` the model is this one's part, and ``number`` tells it from others that they share.
    """

    model: PreTrainedModel
    tokenizer: Any
    codec: Codec
    name: str
    num_parameters: int
    format: NumberFormat
    heads: HeadRunner | None = None
    packed: bool | None = None
    ranks: Ranks | None = None
    number: int = 0

    @property
    def max_positions(self) -> int:
        """The model's context in positions."""
        return context_positions(self.model.config)


def resolve_dtype(name: str) -> torch.dtype:
    """A torch dtype by name. Raises ``UserError`` on another name."""
    check_dtype(name)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def load_model(
    path: str | Path,
    *,
    dtype: str = "float32",
    device: str = "auto",
    packed: bool | None = None,
    sequential: bool = False,
    ranks: Ranks | None = None,
) -> LoadedModel:
    """Load a model directory (or a hub name that is in the local cache).

    ``dtype`` is its number format: ``auto`` (the fastest float format here), a float format, ``int8`` or ``int4``.

    ``packed`` keeps linear weights in the CPU library's own layout (inference only; ``None``: where it pays).

    ``sequential`` takes a model without control tokens too, for requests with ``parallel=False``.

    With ``ranks`` this process loads its part of the model, and the others that follow it load theirs. Draft heads are
    left out: they read the whole output layer.

    Raises ``UserError`` in one line if it is missing, damaged or quantised, has no control tokens, or is of an
    unsupported family.
    """
    check_format(dtype)
    torch_device, where = resolve_device(device), str(path)
    if (looks_local := Path(path).is_absolute() or where.startswith(".")) and not Path(path).is_dir():
        raise UserError(
            f"model: {where!r} is not a directory; expected one with config.json and model.safetensors"
        )
    is_here, number = model_directory(path) is not None, 0
    try:
        config = pretrained_config(where)
    except Exception as error:  # each configuration checks its values in its own way
        hint = (
            "it has no readable config.json"
            if looks_local or Path(path).is_dir()
            else "no such directory or hub model"
        )
        raise UserError(f"model {where!r}: {hint} ({first_line(error)})") from None
    check_architecture(config, f"model {where!r}")
    if ranks is not None:
        check_tensor_parallel(ranks.size, config, EngineSettings(), dtype)
        if torch_device.type != ranks.device_type:
            raise UserError(
                f"device: {torch_device.type!r}, but with tensor_parallel torch takes {ranks.device_type!r} here; "
                "expected auto"
            )
        told = {"path": where, "dtype": dtype, "device": device, "packed": packed, "sequential": sequential}
        number = ranks.load(told)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where)
    except Exception as error:  # of a damaged file transformers raises anything, tokenizers a bare Exception
        raise UserError(f"model {where!r}: no tokenizer can be read there ({first_line(error)})") from None
    try:
        codec = Codec(tokenizer, sequential=sequential, ends=generation_ends(where) if sequential else ())
    except CodecError as error:
        raise UserError(f"model {where!r}: {error}") from None
    model = read_pretrained(
        AutoModelForCausalLM,
        where,
        f"model {where!r}",
        # Load in the checkpoint's own dtype until the number format is chosen.
        dtype=dtype if dtype in DTYPES else "auto",
        attn_implementation=GROUPED,
        distributed_config=None if ranks is None else DistributedConfig(tp_size=ranks.size),
    )
    if ranks is None and not is_here:
        fetch_heads(where)
    heads, directory = None, model_directory(path)
    if directory is not None and ranks is None:
        embedding = model.get_input_embeddings().weight
        heads = read_heads(directory, hidden_size=embedding.shape[1], vocab_size=embedding.shape[0])
    elif directory is not None and ranks is not None and ranks.rank == 0 and has_heads(directory):
        _log.warning("model %r: its draft heads are not used: %d processes share it", where, ranks.size)
    return _ready(model, tokenizer, codec, torch_device, where, packed, dtype, heads, ranks, number)


def random_model(
    config: PretrainedConfig,
    tokenizer: Any,
    *,
    dtype: str = "float32",
    device: str = "auto",
    seed: int = 0,
    packed: bool | None = None,
) -> LoadedModel:
    """A model of this configuration with random weights: for parity tests and for replay at real sizes."""
    check_architecture(config, "model configuration")
    check_format(dtype)
    torch_device, torch_dtype = (
        resolve_device(device),
        getattr(torch, dtype if dtype in DTYPES else "float32"),
    )
    config = copy.deepcopy(config)  # transformers notes the type of the weights in it
    torch.manual_seed(seed)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch_dtype)
    try:
        with torch_device:
            model = AutoModelForCausalLM.from_config(config, attn_implementation=GROUPED, dtype=torch_dtype)
    finally:
        torch.set_default_dtype(previous)
    name = f"random {config.model_type}"
    return _ready(model, tokenizer, Codec(tokenizer), torch_device, name, packed, dtype)


def _ready(
    model: Any,
    tokenizer: Any,
    codec: Codec,
    device: torch.device,
    name: str,
    packed: bool | None,
    dtype: str,
    heads: DraftHeads | None = None,
    ranks: Ranks | None = None,
    number: int = 0,
) -> LoadedModel:
    check_vocabulary(codec, model.get_input_embeddings().num_embeddings, f"model {name!r}")
    # A trace reads every attribute, and transformers warns of a backbone without a loss.
    model.base_model.loss_type = "ForCausalLM"
    model.requires_grad_(False).to(device).eval()
    settle_rotary(model)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if ranks is not None:
        use_local_parts(model, ranks)
    # Before the output layer is packed, which the heads share.
    runner = None if heads is None else HeadRunner(heads, model)
    if ranks is None:
        chosen = choose_format(dtype, model, device)
    else:  # by rank 0's timings: all compute in one format
        chosen = ranks.agree(choose_format(dtype, model, device) if ranks.rank == 0 else None)
    apply_format(model, chosen, device, packed)
    use_huge_pages(model)
    choose_fetching(model)  # by the weights where they now lie
    if ranks is not None:
        ranks.wait()  # a sum would not wait long
    return LoadedModel(model, tokenizer, codec, name, num_parameters, chosen, runner, packed, ranks, number)
