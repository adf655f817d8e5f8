"""Runs a comparison with peers, shape by shape and part by part, and reports what came out."""

import importlib.util

import torch

from pasta.benchmark.documents import read_documents
from pasta.benchmark.measurement import Measurement, check_models
from pasta.benchmark.metrics import Report
from pasta.benchmark.peers.answers import answers_report, measure_answers
from pasta.benchmark.peers.comparison import ShapeComparison
from pasta.benchmark.peers.gguf_file import check_converted
from pasta.benchmark.peers.llama import why_no_llama
from pasta.benchmark.peers.plot import Growth, draw_growth
from pasta.benchmark.peers.replay import measure_replay
from pasta.benchmark.peers.report import (
    check_report,
    decode_report,
    growth_points,
    growth_report,
    prefill_report,
    replay_report,
)
from pasta.benchmark.peers.runtimes import why_left_out
from pasta.benchmark.peers.settings import SHIPPED, PeerSettings
from pasta.benchmark.peers.weights import make_weights
from pasta.engine import kernels, read_model_config
from pasta.engine.supported import why_not_format
from pasta.errors import UserError


class PeerBenchmark:
    """Compares the engine with its peers on this machine's CPU. With the same settings it resumes."""

    def __init__(self, settings: PeerSettings, command: str) -> None:
        self.settings = settings
        self._kept = Measurement(settings, command, torch.device("cpu"))
        self._growth: Growth = {}

    def run(self) -> Report:
        """Measure every part of every shape; returns the report. Raises ``UserError`` on a wrong model or file."""
        self._check()
        with self._kept.alone():
            return self._run()

    def _run(self) -> Report:
        settings, report = self.settings, Report()
        for name, why in {"llama.cpp": why_no_llama(), **why_left_out()}.items():
            if why:
                self._kept.say(f"{name} is left out, {why}")
        if "replay" in settings.parts and settings.documents is None:
            self._kept.say("replay is left out: --documents names no answers")
        built = "loaded" if kernels.ready() else "not built"
        self._kept.say(f"OMP_WAIT_POLICY: {settings.wait_policy or 'not set'}; the engine's kernels: {built}")
        parts = [part for part in settings.parts if part != "replay" or settings.documents is not None]
        for shape in settings.shapes:
            weights = make_weights(shape, settings.models, settings.weights, self._kept.say)
            comparison = ShapeComparison(weights, settings, self._kept)
            if not comparison.formats:
                self._kept.say(f"{weights.name} is left out: no other format is in --formats")
                continue
            for part in parts:
                # A replay of real answers needs a vocabulary that holds their words, own answers a model that has any.
                if (part != "replay" or shape != SHIPPED) and (part != "answers" or weights.parallel):
                    self._measure(comparison, part, report)
                    self._kept.write(report, complete=False)
        picture = settings.out.with_suffix(".png")
        if importlib.util.find_spec("matplotlib") is not None and draw_growth(self._growth, picture):
            self._kept.say(f"drawn: {picture}")
        self._kept.write(report, complete=True)
        return report

    def _measure(self, comparison: ShapeComparison, part: str, report: Report) -> None:
        shape = comparison.weights.name
        if part == "check":
            report.add(*check_report(shape, comparison.check()))
        elif part == "decode":
            records = comparison.decode()
            setups = {name: found["setup"] for name, found in comparison.setups().records.items()}
            report.add(*decode_report(shape, records, setups))
        elif part == "prefill":
            report.add(*prefill_report(shape, comparison.prefill()))
        elif part == "answers":
            report.add(*answers_report(shape, measure_answers(comparison)))
        elif part == "replay":
            report.add(*replay_report(shape, measure_replay(comparison)))
        else:
            records = getattr(comparison, part)()
            report.add(*growth_report(shape, part, records))
            self._growth.setdefault(shape, {})[part] = growth_points(records)

    def _check(self) -> None:
        """Check the settings before anything is measured or written."""
        settings = self.settings
        reasons = [why_not_format(name, torch.device("cpu")) for name in settings.formats]
        if all(reasons):
            raise UserError(f"--formats: {','.join(settings.formats)}: none runs here: {reasons[0]}")
        check_models(settings.models)
        for shape in settings.shapes:
            check_converted(read_model_config(settings.models / "twin" if shape == SHIPPED else shape))
        if settings.documents is not None:
            read_documents(settings.documents)
