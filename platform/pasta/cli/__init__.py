"""The ``pasta`` command: check annotated answers, show their threads."""

from pasta.cli.main import main
from pasta.data.timeline import Lane, lanes_of, render_lanes, render_timeline

__all__ = ["Lane", "lanes_of", "main", "render_lanes", "render_timeline"]
