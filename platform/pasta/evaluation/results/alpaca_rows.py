"""Which row of AlpacaEval an instruction is, from digests: the instructions themselves are not the project's own.

``alpaca_rows.txt`` holds the first characters of the SHA-256 (hex) of each instruction, in AlpacaEval's order.
"""

import hashlib
from importlib import resources

_DIGESTS = resources.files(__package__).joinpath("alpaca_rows.txt").read_text(encoding="ascii").split()
_ROW_OF = {digest: row for row, digest in enumerate(_DIGESTS)}
NUM_ROWS = len(_ROW_OF)


def row_of(instruction: str) -> int | None:
    """The row of an instruction in AlpacaEval, from 0; None if it is not one of its 805."""
    digest = hashlib.sha256(instruction.encode("utf-8", "surrogatepass")).hexdigest()
    return _ROW_OF.get(digest[: len(_DIGESTS[0])])
