"""Puts a tokenizer into a GGUF file, so that llama.cpp's server can take messages and write text."""

import json
from typing import Any

from pasta.errors import UserError

#: Kinds of tokens in a GGUF file: those of text, those that are not shown, those that do not exist.
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5


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
