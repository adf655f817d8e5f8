"""Command lines of tests: options that a test may set anew, each once."""

from collections.abc import Sequence


def with_options(defaults: Sequence[str], options: Sequence[str]) -> list[str]:
    """``defaults``, an option and its value in turn, without those that ``options`` set too; then ``options``."""
    pairs = zip(defaults[::2], defaults[1::2], strict=True)
    return [*(part for pair in pairs if pair[0] not in options for part in pair), *options]
