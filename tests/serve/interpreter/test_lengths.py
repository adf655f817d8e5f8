"""A text that is refused by its length alone would have been too long; most long texts are."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from pasta.lang import Codec
from serve.interpreter.lengths import LeastTokens
from tests.support.paths import ROOT
from tests.support.tokenizers import byte_level, sentencepiece_bpe

ATLAS = ROOT / "platform/pasta/data/atlas/models/pasta"
pieces = st.sampled_from(
    [
        "the ",
        "France",
        " is",
        "1234",
        "   ",
        "\n\n",
        "====",
        "é",
        "e\u0301",
        "日本",
        "<b>",
        "|",
        "x9y",
        "Ａb",
        "\ud800",
    ]
)
texts = st.one_of(st.text(max_size=60), st.lists(pieces, max_size=20).map("".join))


def least_and_codec(tokenizer):
    codec = Codec(tokenizer)
    return LeastTokens(tokenizer.get_vocab(), codec.special_ids, codec.decode_text), codec


CODECS = [least_and_codec(byte_level()), least_and_codec(sentencepiece_bpe())]


@settings(deadline=None)
@given(texts)
def test_no_text_has_fewer_tokens(text):
    for least, codec in CODECS:
        assert least(text) <= len(codec.encode_lossy(text))
        assert least(text, text) <= 2 * len(codec.encode_lossy(text))


def test_spaces_that_a_chat_template_drops_do_not_count():
    assert LeastTokens({"a": 0}, [], str)("  a" + " " * 1000) == 1


def llama_like():
    """Words with their space, as a real vocabulary has them, and its long entries of spaces and signs."""
    entries = [
        "\u0120" * 128,
        "=" * 64,
        "\u0120the",
        "\u0120cat",
        "\u0120internationalization",
        "123",
        "sat",
        "<|end|>" * 20,
    ]
    return LeastTokens({entry: n for n, entry in enumerate(entries)}, [len(entries) - 1], str)


def test_long_entries_of_spaces_do_not_loosen_the_bound_of_words():
    assert llama_like()(" the cat" * 5000) == 10_000


def test_a_run_of_letters_or_digits_is_bounded_by_its_own_longest_entry():
    assert llama_like()("a" * 20_000) == 1000
    assert llama_like()("7" * 30_000) == 10_000


def test_a_prompt_of_spaces_that_fits_is_not_refused():
    assert llama_like()("a" + " " * 128_000 + "a") <= 1002


@pytest.mark.parametrize("text", ["e\u0301" * 100, "ne\u0301e\u0301 " * 50, "xe\u0301" * 30 + "y"])
def test_a_tokenizer_may_compose_accents(text):
    composed = unicodedata.normalize("NFC", text)
    single = LeastTokens({character: n for n, character in enumerate(set(composed))}, [], str)
    assert single(text) <= len(composed)


def test_a_byte_that_is_written_as_a_number_is_one_character():
    least = LeastTokens({"<0x41>": 0, "a": 1}, [], lambda ids: "A")
    assert least("a" * 7) == 7


def test_the_shipped_tokenizer_s_bound_is_tight_for_its_own_texts():
    tokenizer = AutoTokenizer.from_pretrained(ATLAS)
    least, codec = least_and_codec(tokenizer)
    text = "Tell me about France, Japan and Kenya, and their capitals. " * 50
    assert 0.4 * len(codec.encode_text(text)) < least(text) <= len(codec.encode_text(text))
