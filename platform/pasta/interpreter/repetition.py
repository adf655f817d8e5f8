"""Detects that a thread writes the same tokens, or promises the same topic, again and again."""

from collections.abc import Sequence
from dataclasses import fields

from pasta.errors import UserError
from pasta.interpreter.thread import Thread
from pasta.messages import message

#: Each token is compared with as many before it; a thread that repeats more than this is cut by its other limits.
LARGEST_PATTERN = 1024


@message
class RepetitionDetection:
    """Ends a thread whose last tokens are ``min_count`` copies of one pattern of ``min_pattern_size`` to
    ``max_pattern_size`` tokens; with ``max_pattern_size`` 0 none. The names are vLLM's. Our own ``max_same_topic`` ends
    a thread that has promised one topic more often, whatever stands between; with 0 none.

    Raises ``UserError`` that names a value out of range.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 1
    min_count: int = 2
    max_same_topic: int = 0

    def __post_init__(self) -> None:
        least = {"max_pattern_size": 0, "min_pattern_size": 1, "min_count": 2, "max_same_topic": 0}
        for field in fields(self):
            value, low = getattr(self, field.name), least[field.name]
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= LARGEST_PATTERN:
                raise UserError(
                    f"{field.name}: {value!r}, expected an integer from {low} to {LARGEST_PATTERN:,}"
                )
        if 0 < self.max_pattern_size < self.min_pattern_size:
            raise UserError(
                f"min_pattern_size: {self.min_pattern_size}, expected at most max_pattern_size "
                f"({self.max_pattern_size})"
            )

    def ends(self, thread: Thread, threads: Sequence[Thread]) -> bool:
        """Whether ``thread``, one of ``threads``, has written the copies or made the promises that end it."""
        return self.found(thread.tokens) or self.promised(thread, threads)

    def promised(self, thread: Thread, threads: Sequence[Thread]) -> bool:
        """Whether ``thread``, one of ``threads``, has promised its last topic too often."""
        if not (self.max_same_topic and thread.children):
            return False
        topics = [threads[child].topic_ids for _, child in thread.children]
        return topics.count(topics[-1]) > self.max_same_topic

    def found(self, tokens: Sequence[int]) -> bool:
        """Whether ``tokens`` end in the copies of a pattern."""
        return self.within(tokens, 0)

    def within(self, tokens: Sequence[int], more: int) -> bool:
        """Whether ``more`` tokens behind these, whatever they are, could end in the copies of a pattern."""
        longest = min(self.max_pattern_size, (len(tokens) + more) // self.min_count)
        if longest < self.min_pattern_size:
            return False
        if (self.min_count - 1) * self.min_pattern_size <= more:
            return True
        # Each token but those of the first copy is the one that stands a pattern before it, the last one too.
        last, at = len(tokens) - 1, len(tokens) - 1 - longest
        while True:
            try:
                at = tokens.index(tokens[last], at, last - self.min_pattern_size + 1)
            except ValueError:
                return False
            size = last - at
            alike = (self.min_count - 1) * size - more
            if tokens[-alike:] == tokens[-alike - size : -size]:
                return True
            at += 1
