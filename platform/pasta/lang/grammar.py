"""The token-level grammar of a tokenizer: which ids are tags, and how a promise is spelt in ids.

A promise is spelt ``<promise`` OPEN topic TAIL ``/>``, where OPEN is the encoding of ``' topic="'`` and
TAIL that of ``'" tokens="N"'``, each encoded by itself. So the spelling is known token by token for any
tokenizer, and a decoder can enforce it without decoding text.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pasta.lang.positions import Positions


@dataclass(frozen=True, slots=True)
class ControlIds:
    """Token ids of the five control tokens."""

    promise: int
    close: int
    async_open: int
    async_close: int
    sync: int

    def as_tuple(self) -> tuple[int, int, int, int, int]:
        """The ids in the order of ``CONTROL_TOKENS``."""
        return (self.promise, self.close, self.async_open, self.async_close, self.sync)


@dataclass(slots=True)
class TailNode:
    """A node of the trie of TAIL spellings. ``smallest`` is the least N below it, ``largest_child`` the largest
    ``smallest`` of its children; a leaf has ``estimate``."""

    children: dict[int, "TailNode"] = field(default_factory=dict)
    estimate: int | None = None
    smallest: int = 1 << 30
    largest_child: int = 0
    depth_below: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TagGrammar:
    """The token-level grammar of one tokenizer.

    ``text_mask[id]`` is 1 where ``id`` is ordinary text (no special token); ``topic_mask[id]`` is 1 where it
    may stand in a topic, and ``topic_chars[id]`` bounds the characters it adds. All three have ``vocab_size``
    entries. ``positions`` says where a thread goes on after a promise.
    """

    control: ControlIds
    eos_id: int
    eos_ids: frozenset[int]
    open_ids: tuple[int, ...]
    tail: TailNode
    text_mask: bytes
    topic_mask: bytes
    topic_chars: Sequence[int]
    positions: Positions = field(default_factory=Positions)

    @property
    def vocab_size(self) -> int:
        """Number of token ids of the tokenizer, control tokens included."""
        return len(self.text_mask)

    @property
    def tag_overhead(self) -> int:
        """Most tokens a promise can take besides its topic, ``<promise`` and ``/>`` included."""
        return 2 + len(self.open_ids) + self.tail.depth_below

    def is_text(self, token: int) -> bool:
        """Whether an id is ordinary text; an id that the tokenizer lacks is not."""
        return 0 <= token < len(self.text_mask) and bool(self.text_mask[token])

    def text_tokens(self, tokens: Iterable[int]) -> Iterator[int]:
        """The tokens that are text, outside of tags."""
        inside = False
        for token in tokens:
            if token == self.control.promise:
                inside = True
            elif token == self.control.close:
                inside = False
            elif not inside and self.is_text(token):
                yield token


def build_tail(spellings: Mapping[int, Sequence[int]]) -> TailNode:
    """The trie of ``{N: token ids of '" tokens="N"'}``."""
    root = TailNode()
    for estimate, ids in spellings.items():
        node = root
        for rank, token in enumerate(ids):
            node.smallest = min(node.smallest, estimate)
            node.depth_below = max(node.depth_below, len(ids) - rank)
            node = node.children.setdefault(token, TailNode())
        node.smallest = node.estimate = estimate
    nodes = [root]
    while nodes:
        node = nodes.pop()
        nodes += node.children.values()
        node.largest_child = max((child.smallest for child in node.children.values()), default=0)
    return root
