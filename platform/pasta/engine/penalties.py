"""Changes the logits of text as a request asks: biases, no end before ``min_tokens``, and penalties on repeated text.

A thread's penalties count the text that it sees: the prompt, its own text, its ancestors' up to its fork, and the
chunks that were joined. So they do not depend on how far other threads are, nor on where a chunk is decoded. Tags are
no text: their tokens are neither counted nor penalised.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pasta.engine.request import SamplingParams
from pasta.engine.transfer import to_device
from pasta.interpreter import Interpreter


@dataclass(slots=True)
class _Seen:
    """The text tokens of the answer that a thread sees in ``segment``; ``read`` of its own tokens are in it."""

    segment: int
    read: int
    tokens: "array[int]"


class VisibleText:
    """The text tokens that each thread of a response sees."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._grammar, count = interpreter.grammar, interpreter.num_prompt
        #: The text tokens of the prompt.
        self.prompt = array("q", filter(self._grammar.is_text, interpreter.prompt[:count]))
        # Of a chunk, the answer's tokens before its fork: sorted by segment, and no tag stands in two.
        self._before = array("q", self._grammar.text_tokens(interpreter.prompt[count:]))
        self._seen: dict[int, _Seen] = {}

    def seen(self, thread: int) -> "array[int]":
        """The text tokens of the answer that ``thread``, which is not in a tag, sees; in no order."""
        t = self._interpreter.threads[thread]
        found = self._seen.get(thread)
        if found is None or found.segment != t.segment:
            found = self._seen[thread] = self._gathered(thread)
        if found.read < len(t.tokens):
            found.tokens.extend(self._grammar.text_tokens(t.tokens[found.read :]))
            found.read = len(t.tokens)
        return found.tokens

    def _gathered(self, thread: int) -> _Seen:
        threads, segment = self._interpreter.threads, self._interpreter.threads[thread].segment
        visible = self._interpreter.sees[segment]
        tokens = self._before[:]
        for u in threads:
            own = zip(u.tokens, u.segments, strict=False)  # a sync that waits has no segment yet
            tokens.extend(self._grammar.text_tokens(token for token, at in own if visible >> at & 1))
        return _Seen(segment, len(threads[thread].tokens), tokens)


class Edit(NamedTuple):
    """Changes to a ``row`` of logits: its thread sees these tokens of the ``prompt`` and of the answer (``seen`` and
    ``drafts``), and must choose none of ``barred``."""

    row: int
    params: SamplingParams
    prompt: Sequence[int]
    seen: Sequence[int]
    drafts: Sequence[int]
    barred: Sequence[int]


def adjusted(logits: Tensor, edits: Sequence[Edit]) -> Tensor:
    """Return logits [N, V] (float32) with the edits of some rows: biases, then penalties, as vLLM orders them.

    ``repetition_penalty`` (Keskar et al., CTRL, 2019) divides positive logits of tokens in the prompt or the text, and
    multiplies negative ones. ``frequency_penalty`` is subtracted for each time that the text has the token,
    ``presence_penalty`` once if it has it (OpenAI).
    """
    logits = logits.to(torch.float32, copy=True)
    vocab_size, device = logits.shape[-1], logits.device
    biases = [
        (e.row, token, value) for e in edits for token, value in e.params.logit_bias if token < vocab_size
    ]
    if biases:
        rows, tokens, values = zip(*biases, strict=True)
        at = to_device(torch.tensor([rows, tokens]), device)
        added = to_device(torch.tensor(values, dtype=torch.float32), device)
        logits.index_put_((at[0], at[1]), added, accumulate=True)
    barred = [(e.row, token) for e in edits for token in e.barred if token < vocab_size]
    if barred:
        at = to_device(torch.tensor(barred), device)
        logits.index_put_((at[:, 0], at[:, 1]), logits.new_full((), float("-inf")))
    penalised = [e for e in edits if e.params.penalises]
    if penalised:
        own = to_device(torch.tensor([e.row for e in penalised]), device)
        logits.index_copy_(0, own, _penalised(logits.index_select(0, own), penalised))
    return logits


def _penalised(logits: Tensor, edits: Sequence[Edit]) -> Tensor:
    counts = _counts([(e.seen, e.drafts) for e in edits], logits)
    in_text = counts > 0
    known = in_text | (_counts([(e.prompt,) for e in edits], logits) > 0)
    rows = [
        (e.params.repetition_penalty, e.params.frequency_penalty, e.params.presence_penalty) for e in edits
    ]
    columns = to_device(torch.tensor(rows, dtype=logits.dtype), logits.device)
    repetition, frequency, presence = columns[:, :, None].unbind(1)  # each [N, 1]
    logits = torch.where(known, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
    return logits - frequency * counts - presence * in_text


def _counts(tokens: Sequence[Sequence[Sequence[int]]], like: Tensor) -> Tensor:
    """How often each token is in each row's list, as a tensor of the shape and dtype of ``like`` [N, V]."""
    num_rows, vocab_size = like.shape
    flat = np.concatenate([np.asarray(own, dtype=np.int64) for row in tokens for own in row])
    flat += np.repeat(np.arange(num_rows) * vocab_size, [sum(map(len, row)) for row in tokens])
    at = to_device(torch.from_numpy(flat), like.device)
    # The size of what bincount returns follows from its input: the host would wait for it.
    counted = like.new_zeros(num_rows * vocab_size).index_add_(0, at, torch.ones_like(at, dtype=like.dtype))
    return counted.view(num_rows, vocab_size)
