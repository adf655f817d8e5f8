"""The atlas tokenizer: byte-level BPE over the corpus, small enough for a model of a few million parameters."""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pasta.data.atlas.facts import FACTS
from pasta.data.atlas.tasks import iter_corpus
from pasta.errors import UserError
from pasta.lang import CONTROL_TOKENS, Chunk, Item, Text

PAD, BOS, USER, ASSISTANT, END = ROLE_TOKENS = ("<|pad|>", "<|bos|>", "<|user|>", "<|assistant|>", "<|end|>")
VOCABULARY_STEP = 64
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Tag pieces whole; list marks with their line break; numbers whole, with their space; words with their space.
_WORDS = (
    r""" topic="|" tokens="[0-9]+"|\n-(?= )|\n[0-9]+\.(?= )|\n+"""
    r"""| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
)
_MAX_NUMBER = 120
_MAX_ESTIMATE = 640


def train_tokenizer(
    out_dir: str | Path, count: int = 4000, vocab_size: int = 2048
) -> PreTrainedTokenizerFast:
    """Train on ``count`` corpus documents and save to ``out_dir``; the same arguments give the same tokenizer.

    ``vocab_size`` counts everything and must be a multiple of 64, at least 1,536.
    """
    if vocab_size % VOCABULARY_STEP or vocab_size < 1536:
        raise UserError(
            f"atlas tokenizer vocab_size {vocab_size}: expected a multiple of {VOCABULARY_STEP}, >= 1536"
        )
    specials = [*ROLE_TOKENS, *CONTROL_TOKENS]
    vocabulary, merges = _vocabulary([*_texts(count)], vocab_size - len(specials))
    tokenizer = _byte_level(vocabulary, merges)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )
    fast.add_tokens(specials, special_tokens=True)
    fast.chat_template = _CHAT_TEMPLATE
    fast.model_max_length = 4096
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(str(out_dir))
    return fast


def _texts(count: int) -> list[str]:
    """Prompts, and the answers' texts cut at tags, as the codec cuts them."""
    out: list[str] = []

    def walk(items: tuple[Item, ...]) -> None:
        for item in items:
            if isinstance(item, Text):
                out.append(item.text)
            elif isinstance(item, Chunk):
                out.append(item.topic)
                walk(item.items)

    for task in iter_corpus(0, "train", count):
        out.append(task.prompt)
        walk(task.document.items)
    return out


def _required_words() -> list[str]:
    """Words that must be one token each: tag pieces, numbers, list marks."""
    words = [' topic="', *(f'" tokens="{n}"' for n in range(10, _MAX_ESTIMATE + 1, 10))]
    words += [f" {n}" for n in range(_MAX_NUMBER + 1)] + [f"\n{n}." for n in range(1, 13)] + ["\n-", "\n\n"]
    return words


def _name_words() -> list[str]:
    """Words that should be one token each: those of every name."""
    words = []
    for rows in FACTS.values():
        for name in rows:
            words.append(f" {name.split()[0]}")
            words += [f" {word}" for word in name.split()[1:]]
    for kind in ("countries", "elements", "animals", "instruments", "planets"):
        words += [name for name in FACTS[kind] if " " not in name]  # as topics, without a space
    return list(dict.fromkeys(words))


def _byte_level(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _learn(texts: list[str], size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def _vocabulary(texts: list[str], size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """As many learned merges as leave room for the wanted words."""
    required, welcome = _required_words(), _name_words()
    texts = [*texts, *required * 100, *welcome * 100]
    learn = size
    while True:
        vocabulary, merges = _learn(texts, learn)
        _add_words(vocabulary, merges, required)
        if len(vocabulary) <= size:
            return vocabulary, merges
        learn -= len(vocabulary) - size


def _add_words(vocabulary: dict[str, int], merges: list[tuple[str, str]], words: list[str]) -> None:
    """Append merges until each word is one token.

    A word's present pieces are merged from the left. New merges come last, so they never break up what earlier
    merges build.
    """
    for word in words:
        if _bytes(word) in vocabulary:
            continue
        pieces = [token.value for token in models.BPE(vocab=vocabulary, merges=merges).tokenize(_bytes(word))]
        while len(pieces) > 1:
            merges.append((pieces[0], pieces[1]))
            pieces[:2] = [pieces[0] + pieces[1]]
            vocabulary.setdefault(pieces[0], len(vocabulary))


def _bytes(word: str) -> str:
    """A word in the byte-level alphabet."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(piece for piece, _ in level.pre_tokenize_str(word))
