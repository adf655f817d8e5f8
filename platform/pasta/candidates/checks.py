"""What is wrong with models and prompts, said before any weights are read or a worker starts. Needs no torch."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from transformers import AutoTokenizer

from pasta.candidates.config import SampleConfig
from pasta.data.prompts import Prompt
from pasta.data.tokenizers import read_config, read_tokenizer
from pasta.engine.families import check_architecture, check_vocabulary, pretrained_config, text_part
from pasta.engine.head_files import check_heads_beside, has_heads
from pasta.engine.section import SCRATCH, EngineSection, check_tensor_parallel
from pasta.engine.snapshots import check_local_weights, model_directory
from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.lang import Codec, CodecError, encode_messages
from pasta.rows import placed


def check_sampled_models(config: SampleConfig) -> None:
    """Check the models without reading their weights. Raises UserError."""
    pasta = check_model("model", config.model)
    if config.twin is not None and config.twin != config.model:
        check_vocabularies(pasta, config.model, check_model("twin", config.twin), config.twin)
    check_shared(config.workers.tensor_parallel, (config.model, config.twin), config.engine)


def check_shared(size: int, models: Iterable[str | None], engine: EngineSection) -> None:
    """Raise UserError, naming the key, unless workers of ``size`` processes can share each of these models."""
    key = "workers.tensor_parallel"
    for source in models if size > 1 else ():
        if source is None:
            continue
        found = pretrained_config(source)
        check_architecture(found, source)
        check_tensor_parallel(size, found, engine, engine.dtype, key=key, dtype_key="engine.dtype")
        directory = model_directory(source)
        if engine.draft_heads and engine.drafts and directory is not None and has_heads(directory):
            raise UserError(
                f"engine.draft_heads: true, but {key} is {size}, and draft heads lie beside {source}; expected false"
            )


def check_room(source: str, prompts: Sequence[Prompt], limits: Limits, slot_tokens: int) -> None:
    """Compare an engine's slots with the shortest and the longest prompt (in characters), as the model ``source``
    encodes them.

    Raises UserError if no slot would hold the longest answer to the shortest prompt. Prints a warning on stderr if none
    would hold the longest answer to the longest prompt: such answers may end sooner than the limits say.
    """
    codec = Codec(AutoTokenizer.from_pretrained(source))
    by_length = sorted(
        prompts, key=lambda prompt: sum(len(message["content"]) for message in prompt.messages)
    )
    shortest, longest = _prompt_tokens(codec, by_length[0]), _prompt_tokens(codec, by_length[-1])
    beside = limits.max_tokens + SCRATCH
    if slot_tokens < shortest + beside:
        raise UserError(
            f"engine.slot_tokens: {slot_tokens}, but a slot holds a prompt, of which the shortest takes {shortest} "
            f"tokens, and an answer of limits.max_tokens ({limits.max_tokens}); expected at least {shortest + beside}"
        )
    if slot_tokens < longest + beside:
        print(
            f"engine.slot_tokens: {slot_tokens} leaves answers to long prompts less than limits.max_tokens "
            f"({limits.max_tokens}): one takes {longest} tokens, with which {longest + beside} would hold both",
            file=sys.stderr,
            flush=True,
        )


def _prompt_tokens(codec: Codec, prompt: Prompt) -> int:
    try:
        return len(encode_messages(codec, prompt.messages))
    except CodecError:  # the prompt itself gets an error when its turn comes
        return 0


def check_vocabularies(ours: Any, name: str, theirs: Any, other: str, key: str = "twin") -> None:
    """Raise UserError, naming ``key``, unless two tokenizers have the same vocabulary and chat template.

    A speedup is tokens of one model ÷ steps of the other, which is meaningless for two vocabularies.
    """
    vocabulary, twin = ours.get_vocab(), theirs.get_vocab()
    for token in sorted(vocabulary.keys() | twin.keys()):
        if vocabulary.get(token) != twin.get(token):
            raise UserError(
                f"{key}: {other}: another vocabulary than {name} (token {token!r} is {twin.get(token)} there, "
                f"{vocabulary.get(token)} here); expected models that were trained from each other"
            )
    if ours.chat_template != theirs.chat_template:
        raise UserError(f"{key}: {other}: another chat template than {name}; both must see the same prompts")


def check_model(key: str, source: str) -> Any:
    """Check that a model's configuration, vocabulary and draft heads fit together, and that its files of weights are
    whole, without reading them; returns its tokenizer.

    Raises UserError, naming ``key``, if there is none, they do not, are not, or the engine does not know its family.
    """
    model, tokenizer = text_part(read_config(key, source)), read_tokenizer(key, source)
    check_architecture(model, f"{key}: {source}")
    with placed(f"{key}: {source}"):
        codec = Codec(tokenizer)
    check_vocabulary(codec, getattr(model, "vocab_size", None), f"{key}: {source}")
    check_local_weights(source, key)
    check_heads_beside(source, key)
    return tokenizer
