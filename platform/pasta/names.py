"""Names, paths and addresses in configurations: one line of text each. Free text, such as a prompt, is marked."""

import unicodedata
from typing import Annotated

from pydantic import AfterValidator

from pasta.rows import cut

#: Marks text that may have several lines, or none: ``Annotated[str, FREE_TEXT]``.
FREE_TEXT = "free text"


def check_name(text: str) -> str:
    """Return ``text``. Raises ValueError if it is blank, or holds control characters such as line breaks and NUL."""
    if not text.strip() or any(unicodedata.category(character) == "Cc" for character in text):
        raise ValueError(f"expected one line of text, got {cut(text)}")
    return text


#: A name in a pydantic model; ``pasta.config.load_config`` checks those of dataclasses.
Name = Annotated[str, AfterValidator(check_name)]
