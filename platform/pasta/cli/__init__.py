"""The ``pasta`` command: check annotated answers, show their threads."""

from pasta.cli.main import main

__all__ = ["main"]
