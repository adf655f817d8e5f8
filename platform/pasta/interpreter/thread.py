"""The state of one decoding thread, and the actions that an interpreter returns to its driver."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from pasta.lang.grammar import TailNode

#: A thread's path in its answer's tree, independent of the order in which threads were created: () is the main thread,
#: (2, 0) the first child of its third child.
Path = tuple[int, ...]


class Mode(IntEnum):
    """A thread's state in the grammar."""

    TEXT = 0
    OPEN = 1  # inside ' topic="'
    TOPIC = 2
    TAIL = 3  # inside '" tokens="N"'
    CLOSE = 4  # only '/>' is left
    WAITING = 5  # at a <sync/>, for its children
    ENDED = 6  # has emitted its last token; children may still run
    DONE = 7


@dataclass(slots=True)
class Thread:
    """One thread. ``tokens``, ``positions``, ``segments``, ``steps`` and ``times`` run in parallel.

    ``steps`` are critical-path steps, ``times`` the driver's clock.
    """

    id: int
    path: Path
    parent: int | None
    depth: int
    segment: int
    next_position: int
    clock: int
    topic_ids: tuple[int, ...] = ()
    estimate: int = 0
    is_chunk: bool = False
    mode: Mode = Mode.TEXT
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    children: list[tuple[int, int]] = field(
        default_factory=list
    )  # (number of own tokens before it, child id)
    outstanding: list[int] = field(default_factory=list)
    unfinished: int = 0
    subtree: int = 0  # bitmask of the segments of this thread and its descendants
    end_clock: int = 0
    waits: list[tuple[int, int]] = field(default_factory=list)
    # The promise that the thread is writing.
    open_index: int = 0
    promised: int = 0
    topic_start: int = 0
    topic_chars: int = 0
    topic_end: int = 0
    tail: TailNode | None = None
    reserved: int = 1  # tokens kept free so that this thread can always end

    @property
    def running(self) -> bool:
        """Whether the thread has a next token to emit."""
        return self.mode < Mode.WAITING

    @property
    def async_place(self) -> tuple[int, int]:
        """Position and segment of a chunk's ``<async>``."""
        position = (self.positions[0] if self.positions else self.next_position) - 1
        return position, self.segments[0] if self.segments else self.segment


class Feed(NamedTuple):
    """A token that the next forward must feed at ``position``, in ``segment``; ``wants_logits`` if its row's
    logits choose the thread's next token."""

    thread: int
    token: int
    position: int
    segment: int
    wants_logits: bool


@dataclass(frozen=True, slots=True)
class Fork:
    """A promise closed: ``child`` runs from now on."""

    thread: int
    child: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A thread waits at a sync: its children are not done."""

    thread: int


@dataclass(frozen=True, slots=True)
class Join:
    """A sync is resolved: the thread goes on and sees ``children`` from now on."""

    thread: int
    children: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """A chunk and all of its descendants are done."""

    thread: int


@dataclass(frozen=True, slots=True)
class End:
    """The whole response is done."""

    finish_reason: str


Action = Fork | Wait | Join | Finish | End
