"""Our engine and transformers' ``generate`` as decoders."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from pasta.benchmark.peers.decoders import Timing, step_ms
from pasta.benchmark.steps import slot_for
from pasta.engine import Engine, EngineConfig, Event, LoadedModel, Request, ThreadProgress, TokenEvent
from pasta.engine.costs import parallel_chunks
from pasta.engine.fusing import whole_rows
from pasta.interpreter import UNBOUNDED
from pasta.sizes import MOST_STEPS_TOGETHER
from pasta.stages.records import Record

#: Tokens for the steps that are not counted, and for those that run together with the first and the last one.
_SPARE = 3 * MOST_STEPS_TOGETHER
#: Every run prefills and decodes each token, as the others' do; ``jobs.benchmark help`` measures what helps are worth.
#: Steps run several at a time, since the others have no Python between theirs.
_NO_HELP: dict[str, Any] = {"jump_forward": False, "drafts": 0, "reuse_prefixes": False}


class Ours:
    """A ``Peer``: the engine in sequential mode without helps."""

    def __init__(self, loaded: LoadedModel, name: str, threads: Sequence[int], tokens: int) -> None:
        self.loaded, self.name = loaded, name
        self.setups: Sequence[Record] = [{"threads": count} for count in threads]
        self.engine = Engine(loaded, EngineConfig(num_slots=1, slot_tokens=slot_for(tokens), **_NO_HELP))

    def use(self, setup: Record) -> None:
        """Decode with these settings from now on."""
        torch.set_num_threads(setup["threads"])

    def decode(self, prompt: Sequence[int], count: int) -> Timing:
        """Decode ``count`` tokens after ``prompt``: each is chosen greedily and then replaced by a given one, so that
        no end of text stops the run."""
        codec = self.loaded.codec
        forced = [*codec.encode_text(" a")[:1] * (count - 1), codec.eos_id]
        begun = last = time.perf_counter()
        self.engine.submit(Request(prompt_ids=prompt, limits=UNBOUNDED, parallel=False, forced=forced))
        times: list[float] = []
        while self.engine.has_work:
            if tokens := _tokens(self.engine.step()):
                # Tokens of steps that ran together have an equal share of the whole call. Their own times are those of
                # the forwards: a median of these would leave out what the engine does in between.
                now = time.perf_counter()
                times += [last + (now - last) * (number + 1) / tokens for number in range(tokens)]
                last = now
        return Timing.of(begun, times)

    def session(self, prompts: Sequence[Sequence[int]], steps: int, lanes: int) -> "OurSession":
        """A session of so many ``steps``: a lane for each of ``prompts``, or ``lanes`` threads after a single one."""
        return OurSession(self.loaded, prompts, steps, lanes)


class OurSession:
    """Steps of an engine that decodes ``prompts`` at once, or ``lanes`` threads of one request."""

    def __init__(
        self, loaded: LoadedModel, prompts: Sequence[Sequence[int]], steps: int, lanes: int = 1
    ) -> None:
        assert lanes == 1 or len(prompts) == 1
        codec = loaded.codec
        (filler,) = codec.encode_text(" a")[:1]
        # Sequences that are prefilled first decode while the others are prefilled.
        chunk = whole_rows(loaded.model) or EngineConfig().prefill_chunk
        chunks = sum(-(-len(prompt) // chunk) for prompt in prompts)
        text = [filler] * (steps + chunks + _SPARE)
        forced, progress = [*text, codec.eos_id], ThreadProgress()
        if lanes > 1:
            forced, progress = parallel_chunks(codec, lanes, text)
        slot_tokens = slot_for(max(len(prompt) for prompt in prompts) + len(forced))
        self.engine = Engine(
            loaded, EngineConfig(num_slots=len(prompts), slot_tokens=slot_tokens, **_NO_HELP)
        )
        self._requests = [
            Request(prompt_ids=prompt, limits=UNBOUNDED, parallel=lanes > 1, forced=forced, progress=progress)
            for prompt in prompts
        ]
        self._rows, self._text = lanes * len(prompts), len(text)
        self._open: list[str] = []
        self._begin()

    def _begin(self) -> None:
        """Decode the answers from their beginning, up to the first step in which every row decodes."""
        for request in self._open:
            self.engine.cancel(request)
        begun = self.engine.num_steps
        self._open = [self.engine.submit(request) for request in self._requests]
        while _tokens(self.engine.step()) < self._rows:
            assert self.engine.has_work, "the answers are long enough"
        self._end = begun + self._text

    def step(self) -> int:
        """Decode one more token each, or several; returns how many."""
        before = self.engine.num_steps
        tokens = _tokens(self.engine.step())
        steps = self.engine.num_steps - before
        assert tokens == self._rows * steps, "every sequence decodes in every step"
        return steps

    def step_ms(self, count: int) -> list[float]:
        """Milliseconds of so many steps."""
        if self.engine.num_steps + count + 2 * MOST_STEPS_TOGETHER > self._end:
            self._begin()  # steps that ran together have used up the answers
        return step_ms(self.step, count)

    def close(self) -> None:
        """Free its memory."""
        del self.engine


def _tokens(events: Sequence[Event]) -> int:
    return sum(isinstance(event, TokenEvent) for event in events)


class _Clock(StoppingCriteria):
    """Notes when each token was there; never stops."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Generate:
    """A ``Peer``: transformers' ``generate`` on the model as transformers makes it."""

    def __init__(
        self, stock: LoadedModel, name: str, threads: Sequence[int], options: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.setups: Sequence[Record] = [{"threads": count} for count in threads]
        self._model: Any = stock.model
        self._options = dict(options)

    def use(self, setup: Record) -> None:
        """Decode with these settings from now on."""
        torch.set_num_threads(setup["threads"])

    def decode(self, prompt: Sequence[int], count: int) -> Timing:
        """Decode ``count`` tokens greedily after ``prompt``; there is no end of text."""
        model, clock = self._model, _Clock()
        ids = torch.tensor([list(prompt)])
        config = GenerationConfig(
            max_new_tokens=count, do_sample=False, use_cache=True, pad_token_id=0, **self._options
        )
        model.generation_config.eos_token_id = None
        model.set_attn_implementation("sdpa")
        begun = time.perf_counter()
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([clock]),
        )
        assert len(clock.times) == count
        return Timing.of(begun, clock.times)
