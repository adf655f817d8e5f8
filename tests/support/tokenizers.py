"""Real tokenizers of every kind that the codec must serve, built here in a moment."""

import copy
import functools
import io
import tempfile
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, LlamaTokenizer, PreTrainedTokenizerFast

from pasta.lang import Codec, add_control_tokens

TEXT = [
    "The capital of France is Paris. It lies on the Seine.\n- Japan: the capital is Tokyo.",
    "1. First, heat the water.\n2. Then add salt (10 g).\n\nIn short: <b>boil</b> it.<br/>",
    'A list: "quoted", x < y > z, 100% of é, ß, 日本. \\frac{1}{2} \\\\',
]
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKERS = ["<|end|>", "<|user|>", "<|assistant|>"]


def byte_level_without_tags() -> PreTrainedTokenizerFast:
    """A fast byte-level BPE, as GPT-2, Llama 3 and Qwen have, of a model that PASTA has not trained."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=MARKERS, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXT * 5, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", additional_special_tokens=MARKERS[1:]
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def byte_level_without_system() -> PreTrainedTokenizerFast:
    """One whose template refuses a system message, as Gemma's does."""
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
    )
    return tokenizer


@functools.cache
def byte_level() -> PreTrainedTokenizerFast:
    """The same with control tokens."""
    return _finished(byte_level_without_tags())


@functools.cache
def sentencepiece_bpe() -> LlamaTokenizer:
    """SentencePiece BPE with byte fallback and a dummy prefix space, as Llama 2 and Mistral have."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 20),
        model_writer=model,
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.model").write_bytes(model.getvalue())
        tokenizer = LlamaTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": MARKERS, "eos_token": "<|end|>"})
    return _finished(tokenizer)


@functools.cache
def slow_bytes() -> ByT5Tokenizer:
    """A slow tokenizer, written in Python."""
    tokenizer = ByT5Tokenizer(extra_ids=0)
    tokenizer.add_special_tokens({"additional_special_tokens": MARKERS, "eos_token": "<|end|>"})
    return _finished(tokenizer)


def ordinary_close() -> PreTrainedTokenizerFast:
    """A byte-level BPE that has learned ``/>`` from HTML; without control tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=440,
        special_tokens=MARKERS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT * 5 + ["<br/> <hr/> />"] * 200, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", additional_special_tokens=MARKERS[1:]
    )
    assert "/>" in tokenizer.get_vocab()
    return tokenizer


def prepended_space() -> PreTrainedTokenizerFast:
    """Llama 2's layout as a fast tokenizer: BPE with byte fallback, a space put before each text, one taken away."""
    pieces = ["<unk>", *MARKERS, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    pieces += sorted({character for text in TEXT for character in text if character.isascii()} - {" ", "\n"})
    backend = Tokenizer(
        models.BPE({piece: n for n, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", additional_special_tokens=MARKERS[1:]
    )


KINDS = {"byte-level": byte_level, "sentencepiece": sentencepiece_bpe, "slow": slow_bytes}


@functools.cache
def codec(kind: str = "byte-level") -> Codec:
    return Codec(KINDS[kind]())


def _finished(tokenizer):
    tokenizer.chat_template = TEMPLATE
    add_control_tokens(tokenizer)
    return tokenizer
