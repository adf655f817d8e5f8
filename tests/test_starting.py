"""Commands start at once: what takes seconds to import waits until the arguments and the configuration are right."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.tokenizers import byte_level

HEAVY = {"torch", "transformers", "ray", "trl", "deepspeed", "datasets", "wandb", "matplotlib"}
# Runs commands in one process, one after the other; prints for each its exit code, the HEAVY modules so far, and what
# it printed.
RUN = """
import contextlib, io, json, runpy, sys

heavy, commands = set(json.loads(sys.argv[1])), json.loads(sys.argv[2])
for module, *arguments in commands:
    sys.argv = [module, *arguments]
    code = 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as end:
            code = end.code
    print(json.dumps([module, code, sorted(heavy & set(sys.modules)), out.getvalue()]))
"""


def outcomes(commands: list[list[str]]) -> list[list[Any]]:
    run = [sys.executable, "-c", RUN, json.dumps(sorted(HEAVY)), json.dumps(commands)]
    found = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in found.stdout.splitlines()]


def jobs() -> list[str]:
    """The modules of jobs/ that are commands."""
    return [
        f"jobs.{file.stem}"
        for file in sorted((ROOT / "jobs").glob("*.py"))
        if "__main__" in file.read_text(encoding="utf-8")
    ]


@pytest.mark.slow
def test_help_imports_nothing_that_takes_seconds():
    commands = [*jobs(), "serve", "serve.run", "serve.keys", "pasta.cli"]
    assert len(commands) >= 14
    for module, code, heavy, text in outcomes([[command, "--help"] for command in commands]):
        assert (code, heavy) == (0, []), f"python -m {module} --help"
        _, description, *rest = text.split("\n\n")
        assert description.count("(") == description.count(")"), text
        # Examples stand in lines of their own.
        assert "python -m" not in description, text
        assert not description.endswith(":") or "python -m" in rest[0], text


@pytest.mark.slow
def test_a_wrong_configuration_is_refused_before_anything_heavy_is_imported(tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("nmae: x\n", encoding="utf-8")
    configured = ["annotate", "sft", "sample", "score", "preference", "evaluate", "pipeline"]
    commands = [[f"jobs.{job}", "--config", str(wrong)] for job in configured]
    commands.append(["jobs.benchmark_training", "preference", "--config", str(wrong)])
    commands.append(["jobs.submit", "sft", "--config", str(wrong), "--address", "http://127.0.0.1:1"])
    for module, code, heavy, _ in outcomes(commands):
        assert (code, heavy) == (2, []), f"python -m {module}"


def test_what_an_engine_is_told_is_imported_without_torch():
    code = (
        "import sys; from pasta.engine import EngineConfig, LaneCosts, Request, SamplingParams, TokenEvent; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_name_of_the_engine_is_there():
    import pasta.engine

    assert all(getattr(pasta.engine, name) is not None for name in pasta.engine.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Turbine'"):
        pasta.engine.Turbine  # noqa: B018


# What replicas of the service import, the application as serve deploy builds it, and prompts as the Interpreter
# encodes them.
SERVED = """
import json, sys

import serve.app, serve.gateway.deployment, serve.interpreter.deployment

front = sorted({"torch", "transformers"} & set(sys.modules))
from serve.interpreter.encoding import RequestEncoder
from serve.launch import read_service_config

config = read_service_config("configs/serve/local.yaml").args
serve.app.build(config)
served = [RequestEncoder(model, config) for model in config.models.values()]
ids = [[each.codec.encode_prompt(json.loads(sys.argv[1])), each.codec.encode_text(sys.argv[2])] for each in served]
print(json.dumps([front, "torch" in sys.modules, ids]))
"""


@pytest.mark.slow
def test_the_build_gateway_and_interpreter_hold_no_torch_and_encode_the_same_tokens():
    from serve.interpreter.encoding import RequestEncoder
    from serve.launch import read_service_config

    messages = [{"role": "user", "content": "Naïve <sync/> 12 + 3?\n\n- Paris\u2003日本 \U0001f600"}]
    text = "- Capital: Paris </async> and so on.\n1. Oslo"
    run = [sys.executable, "-c", SERVED, json.dumps(messages), text]
    found = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    front, torch, ids = json.loads(found.stdout)
    assert (front, torch) == ([], False)
    assert "PyTorch was not found" not in found.stderr
    config = read_service_config(ROOT / "configs" / "serve" / "local.yaml").args
    codecs = [RequestEncoder(model, config).codec for model in config.models.values()]
    assert ids == [[codec.encode_prompt(messages), codec.encode_text(text)] for codec in codecs]


# What jobs.sample and jobs.evaluate check in their own processes.
CHECKED = """
import sys

from serve.imports import without_torch

without_torch()
from pasta.candidates.checks import check_sampled_models, check_room
from pasta.candidates.config import SampleConfig
from pasta.config import load_config, parse_config
from pasta.data.prompts import Prompt
from pasta.evaluation.config import EvaluateConfig
from pasta.evaluation.methods.checks import check_methods
from pasta.judges.config import JudgeSection
from pasta.judges.make import check_judge

sampled = load_config("configs/sample/atlas.yaml", SampleConfig)
check_sampled_models(sampled)
prompts = [Prompt([{"role": "user", "content": "Tell me about France"}])]
check_room(sampled.model, prompts, sampled.limits, sampled.engine.slot_tokens)
evaluated = load_config("configs/evaluate/atlas.yaml", EvaluateConfig)
check_methods(evaluated.methods, evaluated.baseline, evaluated.engine.num_slots)
check_judge(parse_config({"kind": "reward", "reward": {"model": sys.argv[1]}}, JudgeSection, "judge"))
sys.exit("torch" in sys.modules)
"""


@pytest.mark.slow
def test_models_methods_and_judges_are_checked_without_torch(tmp_path):
    byte_level().save_pretrained(tmp_path)
    reward = {
        "model_type": "llama",
        "architectures": ["LlamaForSequenceClassification"],
        "id2label": {"0": "r"},
    }
    (tmp_path / "config.json").write_text(json.dumps(reward))
    (tmp_path / "pytorch_model.bin").touch()  # is not read
    run = [sys.executable, "-c", CHECKED, str(tmp_path)]
    assert subprocess.run(run, cwd=ROOT, check=False).returncode == 0


# What a worker of jobs.annotate makes of a shard.
ANNOTATED = """
import sys
from functools import partial
from pathlib import Path

from jobs.annotate import TOKENIZER, AnnotateConfig, make_worker
from jobs.pool import _Worker
from pasta.config import load_config
from pasta.data.sources import plan_shards
from pasta.data.tokenizers import find_tokenizer

config = load_config("configs/annotate/atlas.yaml", AnnotateConfig, ["data.source.records=2"])
data, directory = config.data, Path(sys.argv[1])
worker = _Worker(partial(make_worker, data, directory, 1), ".", config.workers, {})
find_tokenizer(data.tokenizer).save_pretrained(directory / TOKENIZER)
done, mistake = worker.run(*plan_shards(data.source, data.shard_records))
print(done.result.num_records, mistake, "torch" in sys.modules)
"""


@pytest.mark.slow
def test_a_worker_that_annotates_holds_no_torch(tmp_path):
    run = [sys.executable, "-c", ANNOTATED, str(tmp_path)]
    assert (
        subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "2 None False\n"
    )


def test_garbage_is_collected_again_once_imports_are_done():
    import gc

    from serve.imports import uncollected

    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
