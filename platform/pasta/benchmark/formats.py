"""Checks of the number formats: what each changes in the PASTA model's answers, against float32."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pasta.benchmark.measurement import MeasuredPart
from pasta.benchmark.metrics import Found, Metric
from pasta.benchmark.quality import fault_of
from pasta.benchmark.steps import timed_steps
from pasta.data.atlas import AtlasTask, grade
from pasta.engine import DoneEvent, Engine, EngineConfig, LoadedModel, Request, Result, TokenEvent
from pasta.engine.quantising import GPU_FORMATS
from pasta.engine.supported import why_not_format
from pasta.interpreter import Limits, Path
from pasta.markdown import markdown
from pasta.stages.records import Record
from pasta.statistics import bootstrap_mean

#: Prompts that are decoded alone and then together.
_TOGETHER = 8
_BASE = "float32"
#: The key of the check of a layer's rows, beside the prompts' numbers.
ROWS = "rows"


class FormatBench:
    """Answers prompts in every format that runs here, alone and beside others, and compares the logits."""

    def __init__(
        self, models: Mapping[str, LoadedModel], max_tokens: int, say: Callable[[str], None]
    ) -> None:
        """``models``: the same model in each format, float32 among them. Says which formats are left out, and why."""
        for name in GPU_FORMATS:
            if why := why_not_format(name, models[_BASE].model.device):
                say(f"{name}: left out, {why}")
        self._limits = Limits(max_tokens=max_tokens)
        sizes = EngineConfig(num_slots=_TOGETHER, slot_tokens=2048)
        self._engines = {name: Engine(loaded, sizes) for name, loaded in models.items()}

    def run(self, part: MeasuredPart[int], tasks: Sequence[AtlasTask]) -> None:
        """Measure the missing prompts, each beside its neighbours."""
        for start in dict.fromkeys(number - number % _TOGETHER for number in part.missing):
            group = dict(enumerate(tasks[start : start + _TOGETHER], start))
            for number, record in self._group(group).items():
                if number in part.missing:
                    part.add(number, record)
        if ROWS not in part.file:
            part.file.add(ROWS, {name: same_rows(engine.loaded) for name, engine in self._engines.items()})

    def _group(self, group: dict[int, AtlasTask]) -> dict[int, Record]:
        codec = self._engines[_BASE].codec
        requests = {
            key: Request(codec.encode_prompt(task.messages), limits=self._limits, request_id=str(key))
            for key, task in group.items()
        }
        records: dict[int, Record] = {key: {} for key in group}
        for name, engine in self._engines.items():
            alone = {key: engine.generate(request) for key, request in requests.items()}
            beside = {result.request_id: result for result in engine.decode(requests.values())}
            for key, task in group.items():
                records[key][name] = self._graded(task, alone[key], engine) | {
                    "same_beside_others": alone[key].response_ids == beside[str(key)].response_ids
                }
        for key, request in requests.items():
            ids = records[key][_BASE].pop("ids")
            expected = _log_probabilities(self._engines[_BASE], request, ids)
            for name, engine in self._engines.items():
                if name != _BASE:
                    records[key][name]["same"] = records[key][name].pop("ids") == ids
                    found = _log_probabilities(engine, request, ids)
                    records[key][name]["kl"] = _divergence(expected, found)
        return records

    @staticmethod
    def _graded(task: AtlasTask, result: Result, engine: Engine) -> dict[str, Any]:
        found = grade(task, result.text)
        return {
            "quality": found.right / found.total if found.total else 0.0,
            "fault": fault_of(engine.codec, result),
            "ids": list(result.response_ids),
        }


def _log_probabilities(engine: Engine, request: Request, ids: Sequence[int]) -> Tensor:
    """Log-probabilities [tokens, vocab] of every choice of an answer with these ids, ordered by thread: the order in
    which threads decode depends on drafts, and so on time."""
    vocabulary = engine.loaded.model.config.vocab_size
    engine.submit(request.replace(forced=tuple(ids), logprobs=vocabulary))
    rows: dict[Path, list[Tensor]] = {}
    for events, _ in timed_steps(engine):
        for event in events:
            if isinstance(event, TokenEvent) and event.logprobs is not None:
                tokens, values = zip(*event.logprobs.top, strict=True)
                rows.setdefault(event.path, []).append(
                    torch.empty(vocabulary).index_copy_(0, torch.tensor(tokens), torch.tensor(values))
                )
            elif isinstance(event, DoneEvent):
                event.outcome()
    return torch.stack([row for path in sorted(rows) for row in rows[path]])


def _divergence(expected: Tensor, found: Tensor) -> list[float]:
    """Kullback-Leibler divergence of each token's distribution from float32's, in nats; both [tokens, vocab]."""
    return [max(0.0, value) for value in (expected.exp() * (expected - found)).sum(dim=-1).tolist()]


@torch.inference_mode()
def same_rows(loaded: LoadedModel) -> bool:
    """Whether the rows of a real layer are the same, to the bit, alone and beside one that is 1,000 times as large."""
    layer = loaded.model.base_model.layers[0].mlp.gate_up_proj
    torch.manual_seed(0)
    x = torch.randn(9, loaded.model.config.hidden_size).to(loaded.model.device, loaded.format.dtype)
    # A GPU's products of another shape may round otherwise, and its steps are padded to few shapes.
    return rows_apart(layer, x, padded=x.device.type == "cuda")


def rows_apart(layer: Callable[[Tensor], Tensor], x: Tensor, *, padded: bool) -> bool:
    """Whether each row of ``x`` [N, width] has the same output alone and beside an outlier; also with zeros beside it
    (``padded``)."""
    x = x.clone()
    x[len(x) // 2] *= 1000
    together = layer(x)
    for row in range(len(x)):
        alone = torch.zeros_like(x) if padded else x[row : row + 1]
        alone[row if padded else 0] = x[row]
        if not torch.equal(layer(alone)[row if padded else 0], together[row]):
            return False
    return True


def formats_report(part: MeasuredPart[int], names: Sequence[str]) -> Found:
    """Metrics of the check of number formats, and the table by its title."""
    rows, records = part.file.records[ROWS], part.records
    base = bootstrap_mean([record[_BASE]["quality"] for record in records])
    metrics, table = [], []
    for name in names:
        mine = [record[name] for record in records]
        quality = bootstrap_mean([record["quality"] for record in mine])
        formed = statistics.fmean(not record["fault"] for record in mine)
        beside = statistics.fmean(record["same_beside_others"] for record in mine)
        metrics += [
            Metric.of(
                f"formats.{name}.quality",
                f"quality, {name}",
                quality,
                target=None if name == _BASE else base.low,
                note="at least the lower end of float32's interval",
            ),
            Metric(f"formats.{name}.formed", f"well-formed outputs, {name}", formed, 1.0, count=len(mine)),
            Metric(f"formats.{name}.rows", f"rows equal beside an outlier, {name}", float(rows[name]), 1.0),
            Metric(
                f"formats.{name}.beside",
                f"answers equal alone and beside {_TOGETHER - 1} others, {name}",
                beside,
                count=len(mine),
            ),
        ]
        told = ["", "", ""]
        if name != _BASE:
            tokens = [value for record in mine for value in record["kl"]]
            divergence = statistics.fmean(tokens)
            metrics.append(
                Metric(f"formats.{name}.kl", f"KL a token against float32, nats, {name}", divergence)
            )
            same = statistics.fmean(record["same"] for record in mine)
            told = [f"{divergence:.2e}", f"{max(tokens):.2e}", f"{same:.3f}"]
        interval = f"{quality.value:.3f} ({quality.low:.3f} to {quality.high:.3f})"
        table.append([name, interval, f"{formed:.3f}", *told, f"{beside:.3f}", "yes" if rows[name] else "no"])
    header = ["format", "quality (95%)", "well-formed", "KL a token", "largest", "answers as in float32"]
    header += ["equal beside others", "rows equal beside an outlier"]
    return metrics, {"Number formats": markdown(header, table)}
