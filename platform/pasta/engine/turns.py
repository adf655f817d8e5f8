"""Prefills the beginning of a conversation's next turn while the engine has nothing else to do.

A parallel answer cannot be taken over (``prefixes.py``): the next turn would prefill its text once more, while its user
waits. So when a request of a conversation ends, its prompt and answer as the chat template puts them before the next
message are prefilled into the slot that keeps its prompt, a chunk at a time. As soon as anything else comes this stops;
what has been computed by then stays.
"""

import time
from collections import deque
from functools import cached_property

from pasta.engine.prefixes import Prefixes
from pasta.engine.request import EngineConfig, Request
from pasta.engine.runner import Runner
from pasta.engine.sampling import Choices
from pasta.engine.slot import Slot
from pasta.interpreter import Limits
from pasta.lang import Codec, turn_tail


class NextTurns:
    """Next turns that may follow, newest first, at most one for each slot."""

    def __init__(self, runner: Runner, prefixes: Prefixes, codec: Codec, config: EngineConfig) -> None:
        self._runner, self._prefixes, self._codec, self._config = runner, prefixes, codec, config
        self._ended: deque[tuple[Request, str]] = deque(maxlen=config.num_slots)
        self._enabled = config.prefill_ahead and prefixes.enabled
        self._number = -1
        self._slot: Slot | None = None

    @cached_property
    def _tail(self) -> list[int] | None:
        return turn_tail(self._codec)

    @property
    def pending(self) -> bool:
        """Whether ``step`` would do anything."""
        return self._slot is not None or bool(self._ended)

    def add(self, request: Request, text: str) -> None:
        """Note that a request has ended with this answer."""
        if self._enabled and request.conversation and request.snapshot is None:
            self._ended.append((request, text))

    def step(self) -> None:
        """Feed a chunk. No request may be in the engine."""
        if self._slot is None:
            self._begin(*self._ended.pop())
        if (slot := self._slot) is None:
            return
        feeds = slot.take(self._runner.prefilled_at_once(self._config.prefill_chunk))
        if feeds:
            numbers = range(self._number, self._number + 1)
            fed = {self._number: [feed._replace(wants_logits=False) for feed in feeds]}
            self._runner.forward(
                numbers, fed, {self._number: slot.interpreter.sees}, Choices.of([], [], []), True
            )
            self._prefixes.counts.ahead += len(feeds)
        if not slot.pending:
            self.stop()

    def stop(self) -> None:
        """Stop using the slot; the tokens it holds by now stay."""
        if self._slot is not None:
            self._slot = None
            self._prefixes.leave(self._number, failed=False)

    def _begin(self, request: Request, text: str) -> None:
        number = self._prefixes.holder(request.prompt_ids, request.cache_salt)
        if number is None or self._tail is None:
            return  # other requests have needed its slot
        ids = [*request.prompt_ids, *self._codec.encode_lossy(text), *self._tail]
        if len(ids) > self._config.slot_tokens:
            return
        following = Request(ids, parallel=False, cache_salt=request.cache_salt, drafts=False)
        now = time.perf_counter()
        slot = Slot(following, Limits(), self._codec, now, now, self._config)
        self._number, self._slot = number, slot
        self._prefixes.admit(number, slot, ahead=True)
