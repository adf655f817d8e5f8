"""``python -m pasta.cli``: the ``pasta`` command."""

from pasta.cli import main

main()
