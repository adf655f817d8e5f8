"""What another engine needs to decode a chunk: the tokens that the chunk sees, and which of them see which."""

from collections.abc import Sequence

from pasta.interpreter.thread import Path
from pasta.messages import message


@message
class Snapshot:
    """The tokens visible to a chunk at its fork: parallel lists of ids, positions and segments.

    ``sees`` are the visibility bitmasks of the segments (renumbered from 0). ``start_position`` is the
    position of the chunk's ``<async>``, ``path`` the chunk's name in its thread tree. The first ``num_prompt`` tokens
    are the prompt.
    """

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    segments: tuple[int, ...]
    sees: tuple[int, ...]
    start_position: int
    path: Path
    num_prompt: int = 0

    @classmethod
    def renumbered(
        cls,
        rows: Sequence[tuple[int, int, int]],
        sees: Sequence[int],
        visible: int,
        start_position: int,
        path: Path,
        num_prompt: int,
    ) -> "Snapshot":
        """Make a snapshot of those ``(token, position, segment)`` rows whose segment is in the bitmask ``visible``."""
        kept = [segment for segment in range(len(sees)) if visible >> segment & 1]
        new = {segment: number for number, segment in enumerate(kept)}
        seen = [row for row in rows if row[2] in new]
        rows = sorted(seen, key=lambda row: row[2])  # stable: order within a segment is kept
        return cls(
            token_ids=tuple(row[0] for row in rows),
            positions=tuple(row[1] for row in rows),
            segments=tuple(new[row[2]] for row in rows),
            sees=tuple(sum(1 << new[k] for k in kept if sees[q] >> k & 1) for q in kept),
            start_position=start_position,
            path=path,
            num_prompt=num_prompt,
        )
