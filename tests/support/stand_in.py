"""The project's stand-in for large models, served while a test asks it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pasta.judges.stand_in import StandIn, StandInServer


@contextmanager
def stand_in_url() -> Iterator[str]:
    """Serve a teacher and judges; yields their base URL."""
    with StandInServer(StandIn()) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()
