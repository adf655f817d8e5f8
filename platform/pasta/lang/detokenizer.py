"""Token ids to text, at the pace of the tokenizer itself."""

from collections.abc import Sequence
from typing import Any

from pasta.lang.tokenizer import Tokenizer


class Detokenizer:
    """Decodes ids as ``tokenizer.decode`` does, special tokens shown and spaces left as they are.

    transformers looks at each id first, which takes longer than to decode a few. Where its ``decode`` is a plain call
    of the Rust tokenizer behind it, that is called at once.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        plain = getattr(type(tokenizer), "_decode", None)
        is_plain = getattr(plain, "__qualname__", "") == "TokenizersBackend._decode"
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None) if is_plain else None

    def __call__(self, ids: Sequence[int]) -> str:
        """Return the text of the ids."""
        if self._backend is not None:
            return str(self._backend.decode(ids, skip_special_tokens=False))
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
