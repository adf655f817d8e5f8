"""Names, paths and addresses in configurations: one line of text each. Free text, such as a prompt, is marked."""

import unicodedata
from typing import Annotated

from pydantic import AfterValidator

from pasta.rows import short_repr

#: Marks text that may have several lines, or none: ``Annotated[str, FREE_TEXT]``.
FREE_TEXT = "free text"


# File systems' limits, in bytes: of a name, and of a path.
_NAME_BYTES, _PATH_BYTES = 255, 4095


def check_name(text: str) -> str:
    """Return ``text``. Raises ValueError if it is blank, begins or ends with white space (in tables and lists it would
    look like another name), holds control characters such as line breaks and NUL, or is longer than a path, or a name
    in it, can be (URLs may)."""
    if not text.strip() or any(unicodedata.category(character) == "Cc" for character in text):
        raise ValueError(f"expected one line of text, got {short_repr(text)}")
    if text != text.strip():
        raise ValueError(f"expected no space at the beginning or end, got {short_repr(text)}")
    named = text.encode()
    if "://" not in text and (len(named) > _PATH_BYTES or max(map(len, named.split(b"/"))) > _NAME_BYTES):
        raise ValueError(
            f"expected at most {_NAME_BYTES} bytes a name, {_PATH_BYTES} a path, got {short_repr(text)}"
        )
    return text


#: A name in a pydantic model; ``pasta.config.load_config`` checks those of dataclasses.
Name = Annotated[str, AfterValidator(check_name)]
