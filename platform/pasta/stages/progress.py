"""How far a stage is, and how long it will take."""

import time
from collections.abc import Callable


def stage_progress(
    say: Callable[[str], None], stage: str, total: int, found: int
) -> Callable[[int, str], None]:
    """A function that takes how many are done and a detail, and says so at most every two seconds.

    ``found`` of the ``total`` were there before.
    """
    if found:
        say(f"{stage}: {found} of {total} found from an earlier run (--fresh measures again)")
    begun = said = time.monotonic()

    def progress(done: int, detail: str) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= 2 or done == total:
            said = now
            left = (now - begun) / max(done - found, 1) * (total - done)
            say(f"{stage}: {done}/{total}{', ' + detail if detail else ''}, {left:.0f} s left")

    return progress
