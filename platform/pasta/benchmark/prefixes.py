"""What prefix reuse saves: the time to the first token in a conversation, and the prefill of a prompt's candidates."""

from collections.abc import Sequence
from statistics import median

from pasta.benchmark.measurement import MeasuredPart
from pasta.benchmark.metrics import Found, Metric
from pasta.candidates.config import SamplingSection
from pasta.data.atlas import AtlasTask, heldout_prompts
from pasta.engine import Engine, EngineConfig, LoadedModel, Request
from pasta.interpreter import Limits
from pasta.markdown import markdown
from pasta.stages.records import Record
from pasta.statistics import bootstrap

#: Questions of a conversation, each with the answers before it; tokens of a prefill chunk (configs/serve/local.yaml).
TURNS, CHUNK = 4, 64
#: Held-out prompts that conversations take theirs from: another number of them would be other prompts.
_PROMPTS = 200


class PrefixBench:
    """Holds conversations on two engines in turn, one of which reuses prefixes, and samples candidates of a prompt."""

    def __init__(self, loaded: LoadedModel, max_tokens: int) -> None:
        self.limits = Limits(max_tokens=max_tokens)
        self.codec = loaded.codec
        self.sampling = SamplingSection()
        self.engines = {
            name: Engine(
                loaded,
                EngineConfig(
                    num_slots=self.sampling.candidates, prefill_chunk=CHUNK, reuse_prefixes=name == "reused"
                ),
            )
            for name in ("reused", "computed")
        }

    def measure(self, number: int) -> Record:
        """One conversation: milliseconds to the first token of each turn on each engine, the tokens of each prompt, how
        many of them were cached, and the prompt tokens fed for one candidate and for all of them."""
        record: Record = {name: [] for name in self.engines} | {"prompt": [], "cached": []}
        messages: list[dict[str, str]] = []
        for task in questions(number):
            messages += task.messages
            prompt_ids = self.codec.encode_prompt(messages)
            request = Request(prompt_ids=prompt_ids, limits=self.limits, conversation=True)
            for name, engine in self.engines.items():
                result = engine.generate(request)
                record[name].append(round(1e3 * result.ttft_s, 4))
                if name == "reused":
                    record["prompt"].append(result.prompt_tokens)
                    record["cached"].append(result.cached_tokens)
            messages.append({"role": "assistant", "content": result.text})
        record["candidates"] = [self._prefilled(request, count) for count in (1, self.sampling.candidates)]
        return record

    def _prefilled(self, request: Request, count: int) -> int:
        engine = self.engines["reused"]
        engine.prefixes.forget()
        requests = [
            request.replace(conversation=False, request_id=str(n), sampling=self.sampling.params("", n))
            for n in range(count)
        ]
        return sum(result.prompt_tokens - result.cached_tokens for result in engine.decode(requests))


def questions(number: int) -> list[AtlasTask]:
    """The questions of a conversation: others than those of every earlier one, as long as there are any."""
    tasks = heldout_prompts(_PROMPTS)
    return [tasks[(number * TURNS + turn) % len(tasks)] for turn in range(TURNS)]


def measure_conversations(part: MeasuredPart[int], loaded: LoadedModel, max_tokens: int) -> None:
    """Measure the missing conversations, after one that warms up."""
    bench = PrefixBench(loaded, max_tokens)
    bench.measure(0)
    for engine in bench.engines.values():
        engine.prefixes.forget()
    for number in part.missing:
        part.add(number, bench.measure(number))


def prefix_report(records: Sequence[Record], label: str) -> Found:
    """The metrics, and the table by its title."""
    note = f"{len(records)} conversations, chunks of {CHUNK} tokens"
    metrics = [
        Metric.of(
            f"prefix.turns.{name}",
            f"time to first token, turn {TURNS} ÷ turn 1, {label}, prefixes {name}",
            bootstrap([record[name][-1] / record[name][0] for record in records]),
            target=1.5 if name == "reused" else None,
            sense="at most",
            note=note,
        )
        for name in ("reused", "computed")
    ]
    one, several = (sum(record["candidates"][i] for record in records) for i in (0, 1))
    count = SamplingSection().candidates
    label = f"prompt tokens prefilled for {count} candidates of a prompt ÷ for one"
    metrics.append(Metric("prefix.candidates", label, several / one, 1.1, "at most"))
    return metrics, {f"Turns of a conversation, {note}": prefix_table(records)}


def prefix_table(records: Sequence[Record]) -> str:
    """Medians of each turn."""
    rows = []
    for turn in range(TURNS):
        tokens = [median(record[key][turn] for record in records) for key in ("prompt", "cached")]
        times = [f"{median(record[key][turn] for record in records):.1f}" for key in ("reused", "computed")]
        rows.append([turn + 1, *map(int, tokens), *times])
    return markdown(
        ["turn", "prompt tokens", "of them cached", "ms to first token, reused", "ms, computed"], rows
    )
