"""``python -m pasta.cli``: the ``pasta`` command."""

from pasta.cli.main import main

main()
