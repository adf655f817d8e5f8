"""Writes a model as GGUF, the file format of llama.cpp: weights, and a tokenizer so that llama.cpp's server can take
messages and write text. Needs the ``gguf`` package (extra ``peers``)."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from pasta.errors import UserError

#: Families, by ``model_type``, for which llama.cpp computes the same function. Its Qwen 3 has no sliding window.
CONVERTED = ("llama", "qwen3")
#: Names of the activation that llama.cpp computes in them, whatever a model was trained with.
_SILU = ("silu", "swish")
_BLOCK = 32
#: Kinds of tokens in a GGUF file: those of text, those that are not shown, those that do not exist.
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def check_converted(config: Any) -> None:
    """Raise ``UserError`` if this family is not converted."""
    if config.model_type not in CONVERTED:
        raise UserError(
            f"llama.cpp: {config.model_type!r} is not converted; expected {' or '.join(CONVERTED)}"
        )
    if config.rope_parameters["rope_type"] != "default":
        raise UserError(
            f"llama.cpp: rope_type {config.rope_parameters['rope_type']!r} is not converted; expected 'default'"
        )
    if config.hidden_act not in _SILU:
        raise UserError(f"llama.cpp: hidden_act {config.hidden_act!r} is not converted; expected 'silu'")
    for name in ("hidden_size", "intermediate_size"):
        if getattr(config, name) % _BLOCK:
            raise UserError(
                f"llama.cpp: {name} {getattr(config, name)}, expected a multiple of {_BLOCK}, the size of a q8_0 block"
            )


def write_gguf(
    config: Any,
    weights: Mapping[str, Tensor],
    tokenizer: Any,
    path: Path,
    format_name: str,
    context: int,
) -> None:
    """Write ``weights`` (a state dictionary) and the tokenizer to ``path`` as ``f32``, ``bf16``, ``q8_0`` or ``q4_0``.

    Vectors stay in float32, as llama.cpp's own converter leaves them; of ``q4_0`` embedding and output layer have 8
    bits, as the engine's output layer has. ``context`` is the longest context that the file claims. Raises
    ``UserError`` on another family, or another kind of tokenizer.
    """
    import gguf

    check_converted(config)
    writer = gguf.GGUFWriter(None, config.model_type)
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_vocab_size(config.vocab_size)
    add_vocabulary(writer, tokenizer, config.vocab_size)
    writer.add_context_length(context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    kind = f"{'ALL' if format_name == 'f32' else 'MOSTLY'}_{format_name.upper()}"
    writer.add_file_type(gguf.LlamaFileType[kind])
    for name, tensor in _tensors(config, weights, heads, key_heads):
        values: NDArray[Any] = tensor.float().contiguous().numpy()
        wanted = format_name.upper() if values.ndim > 1 else "F32"
        if wanted == "Q4_0" and not name.startswith("blk."):
            wanted = "Q8_0"
        stored = gguf.GGMLQuantizationType[wanted]
        writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    writer.write_header_to_file(part)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, path)


def _tensors(
    config: Any, weights: Mapping[str, Tensor], heads: int, key_heads: int
) -> Iterator[tuple[str, Tensor]]:
    """Name in the file, and tensor [out, in] or [size]."""
    yield "token_embd.weight", weights["model.embed_tokens.weight"]
    yield "output_norm.weight", weights["model.norm.weight"]
    if not config.tie_word_embeddings:
        yield "output.weight", weights["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        for theirs, ours in _LAYER.items():
            for kind in ("weight", "bias"):
                key = f"model.layers.{layer}.{theirs}.{kind}"
                if key not in weights and (kind == "bias" or theirs.endswith(("q_norm", "k_norm"))):
                    continue
                tensor = weights[key]
                if config.model_type == "llama" and ours in ("attn_q", "attn_k"):
                    tensor = interleaved(tensor, heads if ours == "attn_q" else key_heads)
                yield f"blk.{layer}.{ours}.{kind}", tensor


def interleaved(tensor: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head. llama.cpp's ``llama`` rotates neighbouring dimensions where transformers rotates
    halves (``permute`` in llama.cpp's convert_hf_to_gguf.py)."""
    shape = tensor.shape
    halves = tensor.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])  # [H, 2, D/2, in]
    return halves.swapaxes(1, 2).reshape(shape)


def read_weights(directory: Path) -> dict[str, Tensor]:
    """The state dictionary of a model directory, as it is stored."""
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= load_file(file)
    return found


def add_vocabulary(writer: Any, tokenizer: Any, vocab_size: int) -> None:
    """Add a byte-level BPE ``tokenizer`` with its chat template; ids without a token, up to ``vocab_size``, are unused.

    llama.cpp splits words by an expression of its own (GPT-2's), so that a prompt can have a few tokens more or fewer
    than here. Raises ``UserError`` for a tokenizer of another kind.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    model = backend["model"]
    if model["type"] != "BPE" or (backend["decoder"] or {}).get("type") != "ByteLevel":
        raise UserError("llama.cpp: the tokenizer is not converted; expected byte-level BPE")
    kinds = dict.fromkeys(model["vocab"].values(), _NORMAL)
    tokens = {number: token for token, number in model["vocab"].items()}
    for added in backend["added_tokens"]:
        tokens[added["id"]], kinds[added["id"]] = added["content"], _CONTROL
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens.get(number, f"[unused{number}]") for number in range(vocab_size)])
    writer.add_token_types([kinds.get(number, _UNUSED) for number in range(vocab_size)])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
