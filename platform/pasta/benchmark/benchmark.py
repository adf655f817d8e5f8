"""Runs a benchmark: its stages measure and write records, and metrics are computed from the records."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from pasta.benchmark.calibrate import Axes, CalibrationBench, calibration_of, calibration_table
from pasta.benchmark.documents import Recorded, answered, read_documents, sample_documents
from pasta.benchmark.formats import ROWS, FormatBench, formats_report
from pasta.benchmark.generate import GenerateBench, generate_metrics, generate_table
from pasta.benchmark.helps import HelpBench, help_report
from pasta.benchmark.machine import code_fingerprint, describe_machine, machine_identity, model_fingerprint
from pasta.benchmark.measurement import MeasuredPart, Measurement, check_inputs
from pasta.benchmark.metrics import Metric, Report
from pasta.benchmark.prefixes import measure_conversations, prefix_report
from pasta.benchmark.quality import family_table, fault_of, grades, quality_metrics
from pasta.benchmark.replay import WORDS, DocumentReplay, document_identity, document_report, encode, measure
from pasta.benchmark.sampling import GROUPS, measure_groups, sampling_report
from pasta.benchmark.settings import Settings
from pasta.benchmark.speed import decode_pair, replay_metrics, speed_metrics
from pasta.benchmark.steps import LaneBench, lane_metrics, lane_table, measure_rounds
from pasta.benchmark.widening import with_widened
from pasta.data.atlas import AtlasTask, heldout_prompts
from pasta.engine import Engine, EngineConfig, LoadedModel, Request, SamplingParams
from pasta.engine.families import context_positions, read_model_config
from pasta.engine.formats import fastest_of, formats_here
from pasta.engine.loading import load_model, random_model
from pasta.engine.supported import resolve_device
from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.lang import to_text
from pasta.stages.records import Record, write_json

K = TypeVar("K")
_STEP_TARGETS = {"shipped": 1.5, "large": 1.10}
_GENERATE_TARGETS = {"shipped": 1.3, "large": 1.1}
#: (prompts, tokens of each) for ``generate``; the shipped twin ends its answers by itself.
_GENERATE_PROMPTS = {"shipped": (8, 512), "large": (2, 48)}
_ROUNDS_FACTOR = {"shipped": 4, "large": 1}
_RANDOM_TOKENS = 256
#: Random weights seldom open a promise by themselves.
_BIAS = 7.0


class Benchmark:
    """Runs stages. With the same settings it resumes an interrupted run."""

    def __init__(self, settings: Settings, command: str) -> None:
        self.settings = settings
        self._device = resolve_device(settings.device, "--device")
        self._kept = Measurement(settings, command, self._device)
        self._formats_by_size: dict[str, str] = {}

    def run(self, stages: Sequence[str]) -> Report:
        """Measure ``stages``; returns the report. Raises ``UserError`` on a wrong model or file."""
        check_inputs(self.settings, stages)
        report, self.settings = Report(), with_widened(self.settings, self._kept.say)
        with self._kept.alone():
            for number, stage in enumerate(stages, start=1):
                getattr(self, f"_{stage}")(report)
                self._kept.write(report, complete=number == len(stages), formats=self._formats_by_size)
        return report

    # -- stages ----------------------------------------------------------------------------------------

    def _accuracy(self, report: Report) -> None:
        records = self._answers("accuracy", repeats=0)
        report.add(quality_metrics(records), {"By task family": family_table(records)})

    def _speed(self, report: Report) -> None:
        records = self._answers("speed", self.settings.repeats)
        report.add(quality_metrics(records), {"By task family": family_table(records)})
        report.add(speed_metrics(records))

    @property
    def _asked(self) -> dict[str, int]:
        return {"prompts": self.settings.prompts, "max_tokens": self.settings.max_tokens}

    def _answers(self, stage: str, repeats: int) -> list[Record]:
        """Each held-out prompt answered by the twin and by PASTA, graded, and timed if ``repeats``."""
        limits = Limits(max_tokens=self.settings.max_tokens)
        asked = self._asked | {"repeats": repeats}
        part = self._part(stage, "shipped", asked, range(len(self._tasks)), "prompts")
        if not part.missing:
            return part.records
        twin, pasta = self._engine(self._twin), self._engine(self._pasta)
        codec = self._pasta.codec
        decode_pair(twin, pasta, codec.encode_prompt(self._tasks[0].messages), limits, repeats=0)
        for number in part.missing:
            task = self._tasks[number]
            record, sequential, parallel = decode_pair(
                twin, pasta, codec.encode_prompt(task.messages), limits, repeats=repeats
            )
            assert parallel.document is not None  # no stop strings
            record["pasta"]["fault"] = fault_of(codec, parallel)
            part.add(
                number,
                {
                    "prompt": task.prompt,
                    "family": task.family,
                    "independent": task.independent,
                    "twin_text": sequential.text,
                    "annotated": to_text(parallel.document),
                    "grades": grades(task, sequential.text, parallel.text, parallel.document),
                    **record,
                },
                f"realised {record['realised']:.2f}x" if repeats else "",
            )
        return part.records

    def _random(self, report: Report) -> None:
        """Random weights of the shipped model's shape: greedy, and sampled with promises favoured."""
        asked = {
            f"{number} {'sampled' if temperature else 'greedy'}": (number, temperature)
            for number, temperature in itertools.product(range(len(self._tasks)), (0.0, 1.0))
        }
        part = self._part("random", "shipped", self._asked, asked, "answers", "random weights")
        if part.missing:
            shape = self._pasta.model.config
            loaded = random_model(
                shape, self._pasta.tokenizer, dtype=self._format("shipped"), device=self.settings.device
            )
            engine = Engine(loaded, EngineConfig(num_slots=8, slot_tokens=1024))
            requests = []
            for key in part.missing:
                number, temperature = asked[key]
                requests.append(
                    Request(
                        prompt_ids=loaded.codec.encode_prompt(self._tasks[number].messages),
                        sampling=SamplingParams(
                            temperature=temperature, seed=number, promise_bias=_BIAS * temperature
                        ),
                        limits=Limits(max_tokens=min(self.settings.max_tokens, _RANDOM_TOKENS)),
                        request_id=key,
                    )
                )
            for result in engine.decode(requests):
                threads, reason = len(result.trace.threads), result.finish_reason
                fault = fault_of(loaded.codec, result)
                part.add(result.request_id, {"fault": fault, "threads": threads, "finish_reason": reason})
        records = part.records
        share = sum(not record["fault"] for record in records) / len(records)
        chunks = sum(record["threads"] - 1 for record in records)
        note = f"half greedy, half sampled with promises favoured; {chunks} chunks"
        label = "well-formed outputs, random weights"
        report.add([Metric("well_formed.random", label, share, 1.0, count=len(records), note=note)])

    def _step(self, report: Report) -> None:
        settings = self.settings
        for size in settings.sizes:
            rounds = settings.rounds * _ROUNDS_FACTOR[size]
            measured = {"lanes": settings.lanes, "cache_tokens": settings.cache_tokens, "rounds": rounds}
            part = self._part(f"step-{size}", size, measured, range(rounds), "rounds", f"step, {size}")
            if part.missing:
                bench = LaneBench(self._loaded(size), settings.lanes, settings.cache_tokens)
                measure_rounds(part, bench.round)
            records, label = part.records, self._label(size)
            title = f"A step, {label}, cache of about {settings.cache_tokens} tokens"
            report.add(
                lane_metrics(records, settings.lanes, size, label, _STEP_TARGETS[size]),
                {title: lane_table(records, settings.lanes)},
            )

    def _calibrate(self, report: Report) -> None:
        settings = self.settings
        for size in settings.sizes:
            axes = Axes(settings.requests, settings.lanes, settings.cache_tokens)
            measured = asdict(axes) | {"together": True}  # older records lack steps together
            stage, rounds = f"calibrate-{size}", range(settings.rounds)
            part = self._part(stage, size, measured, rounds, "rounds", f"calibrate, {size}")
            if part.missing:
                measure_rounds(part, CalibrationBench(self._loaded(size), axes).round)
            about = {
                "dtype": self._format(size),
                "device": str(self._device),
                "threads": self._num_threads(size),
            }
            about |= {"model": self._name(size), "machine": describe_machine(self._device)}
            calibration = calibration_of(part.records, fastest=settings.fastest, **about)
            write_json(settings.out.with_suffix(f".calibration-{size}.json"), asdict(calibration))
            report.add([], {f"A step, {self._label(size)}": calibration_table(calibration)})

    def _generate(self, report: Report) -> None:
        for size in self.settings.sizes:
            count, tokens = _GENERATE_PROMPTS[size]
            tokens = min(tokens, self.settings.max_tokens)
            measured, answers = {"prompts": count, "tokens": tokens}, range(self.settings.rounds * count)
            part = self._part(f"generate-{size}", size, measured, answers, "answers", f"generate, {size}")
            if part.missing:
                loaded = self._loaded(size)
                prompts = [loaded.codec.encode_prompt(task.messages) for task in heldout_prompts(count)]
                bench = GenerateBench(loaded, tokens, self._stock(size))
                for prompt in prompts:  # a longer one makes a new static cache, for which a GPU compiles
                    bench.measure(prompt)
                for number in part.missing:
                    part.add(number, bench.measure(prompts[number % count]))
            records, label = part.records, self._label(size)
            report.add(
                generate_metrics(records, size, label, _GENERATE_TARGETS[size]),
                {f"Sequential decoding, {label}": generate_table(records)},
            )

    def _sampling(self, report: Report) -> None:
        tokens = self.settings.max_tokens
        measured = {"groups": GROUPS, "max_tokens": tokens}
        part = self._part("sampling", "shipped", measured, range(GROUPS), "groups")
        if part.missing:
            measure_groups(part, self._pasta, tokens)
        report.add(*sampling_report(part.records, self._label("shipped")))

    def _formats(self, report: Report) -> None:
        self._use_threads("shipped")
        names = formats_here(self._device)
        identity = self._identity_but_format("shipped") | self._asked | {"formats": names}
        part = self._kept.part("formats", identity, range(len(self._tasks)), "prompts")
        if part.missing or ROWS not in part.file:
            models = {name: self._load("pasta", dtype=name) for name in names}
            FormatBench(models, self.settings.max_tokens, self._kept.say).run(part, self._tasks)
        report.add(*formats_report(part, names))

    def _prefix(self, report: Report) -> None:
        rounds, tokens = range(self.settings.rounds), self.settings.max_tokens
        part = self._part("prefix", "shipped", {"max_tokens": tokens}, rounds, "conversations")
        if part.missing:
            measure_conversations(part, self._pasta, tokens)
        report.add(*prefix_report(part.records, self._label("shipped")))

    def _help(self, report: Report) -> None:
        part = self._part("help", "shipped", self._asked, range(len(self._tasks)), "prompts", "helps")
        HelpBench(self._twin, self._pasta, self.settings.max_tokens).run(part, self._tasks)
        report.add(*help_report(part.records, self._label("shipped")))

    def _replay(self, report: Report) -> None:
        settings, label = self.settings, self._label("large")
        if settings.documents is not None:
            self._replay_documents(settings.documents, report)
            return
        documents = self._documents()
        texts = [to_text(recorded.document) for recorded in documents]
        measured, keys = {"documents": texts, "repeats": settings.repeats}, [each.key for each in documents]
        part = self._part("replay", "large", measured, keys, "documents", f"replay, {settings.large_name}")
        if part.missing:
            loaded = self._loaded("large")
            entries = [encode(loaded.codec, recorded) for recorded in documents]
            measure(part, entries, loaded, settings.repeats)
        report.add(replay_metrics(part.records, settings.large_name, label))

    def _replay_documents(self, path: Path, report: Report) -> None:
        """Replay real annotated answers. Documents that were measured before are not measured again."""
        settings, tokenizer = self.settings, self.settings.tokenizer or WORDS
        documents = sample_documents(read_documents(path), settings.replay_prompts, settings.replay_seed)
        config = read_model_config(settings.model_config)
        longest = min(settings.longest or context_positions(config), context_positions(config))
        measured = document_identity(path, tokenizer) | {"repeats": settings.repeats, "longest": longest}
        keys, title = [document.key for document in documents], f"replay, {settings.large_name}"
        part = self._part("documents", "large", measured, keys, "documents", title)
        if part.missing:
            counted = DocumentReplay(documents, tokenizer, longest, config.vocab_size)
            config.vocab_size = counted.vocabulary
            counted.run(part, self._random_large(config, counted.tokenizer), settings.repeats)
        report.add(*document_report(part.records, settings.large_name, self._label("large"), tokenizer))

    def _documents(self) -> list[Recorded]:
        stage = next((name for name in ("speed", "accuracy") if name in self._kept.files), None)
        records = self._answers(stage or "accuracy", self.settings.repeats if stage == "speed" else 0)
        documents = answered(records, self.settings.replay_prompts)
        if len(documents) < 2:
            raise UserError(
                "replay: fewer than two answers have chunks; raise --prompts, or give --documents FILE"
            )
        return documents

    # -- inputs ----------------------------------------------------------------------------------------

    @cached_property
    def _tasks(self) -> list[AtlasTask]:
        return heldout_prompts(self.settings.prompts)

    @cached_property
    def _twin(self) -> LoadedModel:
        return self._load("twin")

    @cached_property
    def _pasta(self) -> LoadedModel:
        return self._load("pasta")

    @cached_property
    def _large(self) -> LoadedModel:
        return self._make_large(packed=None)

    def _make_large(self, packed: bool | None) -> LoadedModel:
        return self._random_large(
            read_model_config(self.settings.model_config), self._pasta.tokenizer, packed
        )

    def _random_large(self, config: Any, tokenizer: Any, packed: bool | None = None) -> LoadedModel:
        settings = self.settings
        dtype = self._format("large")
        self._kept.say(f"making {settings.large_name} with random weights, {dtype}")
        return random_model(config, tokenizer, dtype=dtype, device=settings.device, packed=packed)

    def _stock(self, size: str) -> LoadedModel:
        """The model as transformers makes it: the engine may have packed its weights."""
        return self._load("twin", packed=False) if size == "shipped" else self._make_large(packed=False)

    def _load(self, name: str, packed: bool | None = None, dtype: str | None = None) -> LoadedModel:
        path, dtype = (self.settings.models / name).absolute(), dtype or self._format("shipped")
        return load_model(path, dtype=dtype, device=self.settings.device, packed=packed)

    def _loaded(self, size: str) -> LoadedModel:
        """The model that single steps and ``generate`` are timed on."""
        return self._twin if size == "shipped" else self._large

    def _engine(self, loaded: LoadedModel) -> Engine:
        return Engine(loaded, EngineConfig(num_slots=1, reuse_prefixes=False))

    def _label(self, size: str) -> str:
        return f"{self._name(size)}, {self._format(size)}"

    def _format(self, size: str) -> str:
        """The number format of a size's models. ``auto`` is chosen once: a run that goes on keeps it."""
        if self.settings.dtype != "auto":
            return self.settings.dtype
        if size not in self._formats_by_size:
            file = self._kept.open(f"format-{size}", self._identity_but_format(size))
            if "chosen" not in file:
                path = self.settings.models / "twin" if size == "shipped" else self.settings.model_config
                file.add("chosen", asdict(fastest_of(read_model_config(path), self._device)))
            found = file.records["chosen"]
            self._formats_by_size[size] = found["name"]
            self._kept.say(f"{self._name(size)}: computes in {found['name']}, {found['why']}")
        return self._formats_by_size[size]

    def _name(self, size: str) -> str:
        return self.settings.shipped_name if size == "shipped" else self.settings.large_name

    # -- files -----------------------------------------------------------------------------------------

    def _part(
        self, stage: str, size: str, measured: Record, keys: Iterable[K], unit: str, title: str = ""
    ) -> MeasuredPart[K]:
        """The part of a stage whose records depend on ``measured`` besides; torch computes with this size's threads
        from now on."""
        self._use_threads(size)
        return self._kept.part(stage, self._identity(size) | measured, keys, unit, title)

    def _use_threads(self, size: str) -> None:
        """Set torch's threads. A second thread slows a model of a few million parameters down; a large model needs all
        cores."""
        torch.set_num_threads(self._num_threads(size))

    def _num_threads(self, size: str) -> int:
        return self.settings.threads if size == "shipped" else self.settings.large_threads

    def _identity(self, size: str) -> dict[str, Any]:
        """The configuration that a stage's records depend on, apart from the stage's own settings."""
        return self._identity_but_format(size) | {"dtype": self._format(size)}

    def _identity_but_format(self, size: str) -> dict[str, Any]:
        threads = {"threads": self._num_threads(size)}
        if size == "shipped":
            return self._shipped_identity | threads
        return self._shared_identity | threads | {"model_config": self.settings.model_config.read_text()}

    @cached_property
    def _shipped_identity(self) -> dict[str, Any]:
        models = {name: model_fingerprint(self.settings.models / name) for name in ("twin", "pasta")}
        return self._shared_identity | {"models": models}

    @cached_property
    def _shared_identity(self) -> dict[str, Any]:
        return machine_identity(self._device) | {"code": code_fingerprint(), "device": str(self._device)}
