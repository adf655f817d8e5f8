"""llama.cpp with a draft model (speculative decoding, Leviathan et al. 2023): a small model guesses a few tokens, the
large one checks them in one batch.

What is measured is the cost. How many guesses are right is not found but drawn: the models under comparison were made
for this measurement, so that their own drafts would say nothing about a pair that people have. llama.cpp's server has
the same for its benchmarks (``--spec-synth-rates``).
"""

import contextlib
import functools
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from pasta.benchmark.peers.decoders import Timing
from pasta.benchmark.peers.llama import Llama, LlamaContext, LlamaDecoder, LlamaModel
from pasta.benchmark.peers.settings import DRAFTS
from pasta.stages.records import Record

#: Numbers of drafts a step to choose the fastest of.
_DRAFTS = (1, 2, 3, 4, 6, 8)


class DraftingLlama:
    """A ``Peer``: the process of ``llama`` with a draft model besides, each of whose tokens is right with probability
    ``acceptance`` if those before it are.

    ``setup`` are the settings in which ``llama`` is fastest alone.
    """

    def __init__(self, llama: Llama, draft: Path, acceptance: float, setup: Record) -> None:
        self.name = f"{llama.name}{DRAFTS}"
        self.setups: Sequence[Record] = [setup | {"drafts": count} for count in _DRAFTS]
        self._llama, self._draft, self._acceptance = llama, draft, acceptance
        self._setup = self.setups[-1]

    def use(self, setup: Record) -> None:
        """Decode with these settings from now on."""
        self._setup = setup

    def decode(self, prompt: Sequence[int], count: int) -> Timing:
        """Decode ``count`` tokens after ``prompt``. The median and the least time of a token are a step's, over the
        tokens to be expected of it."""
        given = self._draft, self._acceptance, self._setup, prompt, count
        timing: Timing = self._llama.call(_decode, *given)
        return timing


class Speculation:
    """One sequence in the caches of two models, up to ``last``, the token chosen last. Guesses are checked in one
    batch; which of them are right is drawn."""

    def __init__(self, target: LlamaContext, draft: LlamaContext, acceptance: float) -> None:
        self._target, self._draft, self._acceptance = target, draft, acceptance
        self._drawn = random.Random(0)
        self.last, self._unread = 0, [0]

    def begin(self, prompt: Sequence[int]) -> None:
        """Prefill the prompt in both."""
        self._target.begin([prompt])
        self._draft.begin([prompt])
        self.last, self._unread = self._target.last[0], self._target.last

    def step(self, drafts: int) -> int:
        """Have so many tokens guessed and checked; returns how many tokens came of it, the model's own included."""
        guesses: list[int] = []
        for _ in range(drafts):
            guesses += self._draft.extend(guesses[-1:] or self._unread, 1)
        chosen = self._target.extend([self.last, *guesses], drafts + 1)
        right = 0
        while right < drafts and self._drawn.random() < self._acceptance:
            right += 1
        self._target.shorten(drafts - right)
        self.last = chosen[right]
        if drafts == 0:
            self._unread = [*self._unread, self.last]
        elif right == drafts:  # the draft model has not read its own last guess
            self._unread = [guesses[-1], self.last]
        else:
            self._draft.shorten(drafts - 1 - right)
            self._unread = [self.last]
        return right + 1


def _decode(
    decoder: LlamaDecoder, path: Path, acceptance: float, setup: Record, prompt: Sequence[int], count: int
) -> Timing:
    """In llama.cpp's process: decode with drafts."""
    tokens, drafts = len(prompt) + count + 1, setup["drafts"]
    with contextlib.ExitStack() as stack:
        target, draft = decoder.context(setup, tokens), decoder.context(setup, tokens, of=_draft_model(path))
        stack.callback(target.close)
        stack.callback(draft.close)
        pair = Speculation(target, draft, acceptance)
        begun = time.perf_counter()
        pair.begin(prompt)
        started, made, seconds, each = time.perf_counter(), 1, 0.0, []
        while made < count:
            guesses = min(drafts, count - made - 1)  # the last token is no guess
            step_begun = time.perf_counter()
            made += pair.step(guesses)
            seconds += (spent := time.perf_counter() - step_begun)
            each.append(spent / sum(acceptance**i for i in range(guesses + 1)))
    return Timing(started - begun, count - 1, seconds, statistics.median(each), min(each), len(each))


@functools.cache
def _draft_model(path: Path) -> LlamaModel:
    return LlamaModel(path)
