"""Prompts of a stage, and the configuration of their source."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from pasta.bounds import check_positive, check_unread
from pasta.data.atlas_keys import ATLAS, check_atlas_keys
from pasta.rows import Messages


@dataclass(frozen=True, slots=True)
class PromptsSection:
    """Where prompts come from: ``atlas`` (training split), a JSONL file of ``{"messages"}``, or a stage's directory.

    ``count`` distinct prompts are drawn with ``seed``; without it a file's are all taken, in their order.
    """

    source: str = ATLAS
    count: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(self, "count")
        check_atlas_keys(self.source, {"count": self.count}, {}, 0.0, 0.0)
        if self.source == ATLAS and self.count is None:
            raise ValueError("count: expected the number of atlas prompts to draw")
        if self.count is None:
            check_unread(self, "without count: all prompts are taken, in their order", "seed")

    def inputs(self) -> dict[str, str | Path]:
        """The file or directory that a stage reads its prompts from, for its manifest; none for the atlas."""
        return {} if self.source == ATLAS else {"prompts.source": str(Path(self.source).absolute())}


@dataclass(frozen=True, slots=True)
class Prompt:
    """Chat messages, the last one a user's. ``id`` is a digest of them: equal prompts have equal ids."""

    messages: Messages
    id: str = field(init=False)

    def __post_init__(self) -> None:
        text = json.dumps([[m["role"], m["content"]] for m in self.messages], ensure_ascii=False)
        object.__setattr__(self, "id", hashlib.sha256(text.encode()).hexdigest()[:16])
