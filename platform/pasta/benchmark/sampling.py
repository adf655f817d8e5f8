"""Compares ways to sample candidates: many prompts at once, one prompt at a time, one answer at a time."""

import time
from collections.abc import Sequence

from pasta.benchmark.measurement import MeasuredPart
from pasta.benchmark.metrics import Found, Metric, rate_of
from pasta.candidates.config import SamplingSection
from pasta.data.atlas import heldout_prompts
from pasta.data.prompts import Prompt
from pasta.engine import Engine, EngineConfig, LoadedModel, Request
from pasta.interpreter import Limits
from pasta.markdown import markdown
from pasta.stages.records import Record
from pasta.statistics import bootstrap

#: Prompts sampled together, groups of them, and slots of the engine.
GROUP_PROMPTS, GROUPS, NUM_SLOTS = 4, 2, 16
WAYS = {
    "answer": "one answer at a time",
    "prompt": "one prompt at a time, its candidates together",
    "shard": f"{GROUP_PROMPTS} prompts at once, {NUM_SLOTS} slots",
}


class SamplingBench:
    """Draws the same candidates of some prompts in each way, in turn."""

    def __init__(self, loaded: LoadedModel, max_tokens: int, sampling: SamplingSection | None = None) -> None:
        self.sampling = sampling or SamplingSection()
        self.limits = Limits(max_tokens=max_tokens)
        self.codec = loaded.codec
        slots = {"answer": 1, "prompt": self.sampling.candidates, "shard": NUM_SLOTS}
        self.engines = {way: Engine(loaded, EngineConfig(num_slots=n)) for way, n in slots.items()}

    def measure(self, prompts: Sequence[Prompt]) -> Record:
        """Tokens (tags counted) and seconds of each way."""
        by_prompt = [self._requests(prompt) for prompt in prompts]
        every = [request for requests in by_prompt for request in requests]
        batches = {"answer": [[request] for request in every], "prompt": by_prompt, "shard": [every]}
        record: Record = {}
        for way, engine in self.engines.items():
            tokens, begun = 0, time.perf_counter()
            for batch in batches[way]:
                tokens += sum(result.num_tokens for result in engine.decode(batch))
            record[way] = [tokens, time.perf_counter() - begun]
        return record

    def _requests(self, prompt: Prompt) -> list[Request]:
        ids = self.codec.encode_prompt(prompt.messages)
        return [
            Request(
                prompt_ids=ids,
                limits=self.limits,
                sampling=self.sampling.params(prompt.id, n),
                request_id=f"{prompt.id} {n}",
            )
            for n in range(self.sampling.candidates)
        ]


def measure_groups(part: MeasuredPart[int], loaded: LoadedModel, max_tokens: int) -> None:
    """Measure the missing groups, held-out prompts of the atlas, after a prompt that warms the engines up."""
    bench = SamplingBench(loaded, max_tokens)
    prompts = [Prompt(task.messages) for task in heldout_prompts(GROUP_PROMPTS * GROUPS)]
    bench.measure(prompts[:1])
    for engine in bench.engines.values():
        engine.prefixes.forget()
    for number in part.missing:
        part.add(number, bench.measure(prompts[number::GROUPS]))


def sampling_report(records: Sequence[Record], label: str) -> Found:
    """Tokens a second of many prompts at once, and their ratio to the other two ways."""
    totals = {way: [sum(record[way][i] for record in records) for i in (0, 1)] for way in WAYS}
    rate = rate_of(totals["shard"])
    metrics = [Metric("sampling.rate", f"sampling, tokens a second, {label}", rate, note=WAYS["shard"])]
    for way in ("prompt", "answer"):
        ratios = bootstrap([rate_of(record["shard"]) / rate_of(record[way]) for record in records])
        name = f"sampling ÷ {WAYS[way]}, tokens a second, {label}"
        metrics.append(
            Metric.of(
                f"sampling.{way}", name, ratios, note=f"{len(records)} groups of {GROUP_PROMPTS} prompts"
            )
        )
    rows = [[WAYS[way], f"{rate_of(total):.1f}", int(total[0])] for way, total in totals.items()]
    return metrics, {f"Sampling, {label}": markdown(["sampling", "tokens a second", "tokens"], rows)}
