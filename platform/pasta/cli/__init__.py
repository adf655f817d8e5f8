"""The ``pasta`` command: check annotated answers, show their threads."""

from collections.abc import Sequence
from typing import NoReturn

from pasta.entrypoint import run_main


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point. Exit codes: 0 fine, 1 invalid records, 2 misuse, 130 interrupted."""

    def command() -> int:
        from pasta.cli.commands import run  # here, so that a Ctrl-C meanwhile is one line too

        return run(arguments)

    run_main(command)
