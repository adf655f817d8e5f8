"""Values that cannot be meant, in the shipped configurations: refused in one line as they are read."""

import importlib

import pytest

from pasta.config import ConfigError, load_config
from pasta.simulation.config import SimulateConfig
from tests.support.paths import ROOT

TEACHER = "annotate/atlas-teacher"


def refusal(config: str, *overrides: str) -> str:
    """What is said of a shipped configuration with these keys set."""
    path = ROOT / "configs" / f"{config}.yaml"
    kind = path.parent.name
    cls = SimulateConfig if kind == "simulate" else importlib.import_module(f"jobs.{kind}").CONFIG
    load_config(path, cls)
    with pytest.raises(ConfigError) as caught:
        load_config(path, cls, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "override", "expected"),
    [
        (TEACHER, "data.teacher.temperature=-1", "data.teacher: temperature -1.0: expected a number from 0 to 2"),
        (TEACHER, "data.teacher.temperature=1e9", "temperature 1000000000.0: expected a number from 0 to 2"),
        (TEACHER, "data.teacher.endpoint.model=''", "data.teacher.endpoint.model: expected one line of text, got ''"),
        (TEACHER, "data.teacher.endpoint.api_key_env=A B", "api_key_env: expected the name of an environment variable"),
        ("score/teacher", "judge.teacher.temperature=2.5", "judge.teacher: temperature 2.5: expected a number from 0"),
        ("score/reward", "judge.reward.device=gpu", "judge.reward: device: 'gpu', expected auto, cpu, cuda or cuda:N"),
        ("score/reward", "judge.reward.max_length=0", "judge.reward: max_length 0: expected a positive integer"),
        ("sample/atlas", "engine.device='cuda:'", "engine: device: 'cuda:', expected auto, cpu, cuda or cuda:N"),
        ("sample/atlas", "tracking.project=a/b", "tracking: project 'a/b': expected a name without '/'"),
        ("sample/atlas", f"tracking.project={'a' * 129}", "aaa…': expected at most 128 characters"),
        ("annotate/atlas", "data.source.split=test", "data.source: split 'test': expected one of train, heldout"),
        ("annotate/alpaca-syntactic", "data.syntactic.min_items=0", "data.syntactic: min_items 0: expected a positive"),
        ("annotate/alpaca-syntactic", "data.syntactic.max_depth=-1", "max_depth -1: expected a positive integer"),
        ("annotate/atlas", "data.checks.min_speedup=-1", "data.checks: min_speedup -1.0: expected 0 or more"),
        ("sft/qwen3-8b-lora", "lora.targets=[]", "lora: targets []: expected all-linear, or the names of"),
        ("sample/atlas", "engine.num_slots=1000000000", "num_slots 1000000000: expected at most 1,048,576"),
        ("sample/atlas", "engine.slot_tokens=1000000000000", "slot_tokens 1000000000000: expected at most 16,777,216"),
        ("sample/atlas", "limits.max_tokens=1000000000000", "max_tokens: 1000000000000, expected at most 1,073,741,8"),
        ("sample/atlas", "sampling.candidates=1000000000", "candidates 1000000000: expected at most 10,000"),
        ("sample/atlas", "workers.num_workers=1000000000", "num_workers 1000000000: expected at most 10,000"),
        ("sample/atlas", "workers.threads=1000000000", "workers: threads 1000000000: expected at most 1,024"),
        ("sft/atlas-plain", "optimisation.rows=1000000000", "rows 1000000000: expected at most 65,536"),
        ("sft/atlas-plain", "optimisation.accumulate=1000000000", "accumulate 1000000000: expected at most 65,536"),
        ("sft/atlas-plain", "data.max_length=1000000000000", "max_length 1000000000000: expected at most 16,777,216"),
        ("sft/qwen3-8b-lora", "lora.rank=1000000000", "lora: rank 1000000000: expected at most 65,536"),
        ("sft/atlas-heads-pasta", "draft_heads.depth=1000000000", "depth 1000000000: expected at most 64"),
        ("preference/atlas", "data.max_length=1000000000000", "max_length 1000000000000: expected at most 16,777,216"),
        ("rl/atlas", "rollout.prompts=1000000000", "prompts 1000000000: expected at most 65,536"),
        ("score/reward", "judge.reward.batch_size=1000000000", "batch_size 1000000000: expected at most 65,536"),
        (TEACHER, "data.teacher.endpoint.concurrency=1000000000", "concurrency 1000000000: expected at most 10,000"),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_named(config, override, expected):
    assert expected in refusal(config, override)


@pytest.mark.parametrize(
    ("config", "overrides", "expected"),
    [
        ("annotate/atlas", ["data.routed=true"], "data: routed True: has no effect without annotator: sot"),
        ("annotate/atlas", ["data.syntactic.min_items=3"], "data: syntactic: has no effect without annotator"),
        ("annotate/atlas-sot", ["data.checks.strip=exact"], "data: checks: has no effect with annotator: sot, which"),
        ("annotate/atlas", ["data.source.revision=main"], "data.source: revision 'main': has no effect with path"),
        ("annotate/atlas", ["data.source.format=messages"], "format 'messages': has no effect with path: atlas"),
        ("annotate/alpaca-syntactic", ["data.syntactic.lists=false", "data.syntactic.min_items=3"],
         "data.syntactic: min_items 3: has no effect without lists"),
        ("annotate/alpaca-syntactic", ["data.syntactic.lists=false", "data.syntactic.paragraphs=false"],
         "data.syntactic: lists, paragraphs: expected at least one of them to be true"),
        ("sft/atlas-plain", ["data.eval_documents=0", "data.eval_answers=0"],
         "schedule.eval_steps 1000: has no effect with data.eval_documents: 0"),
        ("sft/atlas-plain", ["schedule.save_steps=0", "schedule.keep_checkpoints=3"],
         "schedule: keep_checkpoints 3: has no effect with save_steps: 0"),
        ("sft/atlas-heads-pasta", ["model.save_dtype=float32"], "save_dtype 'float32': has no effect with draft_heads"),
        ("preference/atlas", ["objective.loss=dpo", "objective.alpha=0.1"],
         "objective: alpha 0.1: has no effect with loss: dpo"),
        ("preference/atlas", ["objective.loss=ipo", "objective.num_samples=8"], "num_samples 8: has no effect with"),
        ("preference/atlas", ["objective.beta=0.1", "objective.num_samples=8"], "num_samples 8: has no effect with b"),
        ("preference/atlas", ["data.eval_pairs=0"], "schedule.eval_steps 50: has no effect with data.eval_pairs: 0"),
        ("rl/atlas", ["optimisation.epochs=2"], "optimisation: epochs 2.0: has no effect with max_steps, which says"),
        ("sft/llama-3.1-8b", ["optimisation.max_steps=2"], "epochs 2.0: has no effect with max_steps, which says"),
        ("sft/llama-3.1-8b", ["model.init_from=runs/models/a", "output_dir=runs/models/a"],
         "output_dir: runs/models/a: is model.init_from; name another directory"),
        ("sft/llama-3.1-8b", ["data.seed=3"], "data: seed 3: has no effect with a file or a stage: only the atlas is"),
        ("sample/atlas", ["prompts.source=a.jsonl", "prompts.count=null"], "seed 11: has no effect without count"),
        ("evaluate/atlas", ["methods.sot={kind: sot, model: a, sot: {style: trained, prompts: {skeleton: '{request}', "
         "point: '{request}{point}'}}}"], "style 'trained': has no effect with prompts, which are used instead"),
        ("evaluate/atlas", ["methods={a: {kind: endpoint, endpoint: &e {base_url: 'http://a', model: b}}, "
         "b: {kind: endpoint, endpoint: *e}}", "baseline=a", "engine.num_slots=3"],
         "engine: has no effect where no method has a model"),
        ("sft/atlas-plain", ["optimisation.max_steps=60"],
         "warmup_steps 60: expected less than max_steps (60), or the rate never reaches learning_rate"),
        ("rl/atlas", ["optimisation.warmup_steps=200"], "warmup_steps 200: expected less than max_steps (100), or the"),
        ("preference/atlas", ["optimisation.max_steps=8"], "warmup_steps 10: expected less than max_steps (8), or"),
        ("simulate/atlas", ["engine.acceptance=0.9"], "engine: acceptance 0.9: has no effect without drafts"),
        ("simulate/atlas", ["cluster={crowding: 2.0}"], "cluster: crowding 2.0: has no effect without cores"),
        ("simulate/atlas", ["trace={source: a.jsonl, shuffle: false, seed: 3}"], "trace: seed 3: has no effect with"),
    ],
)  # fmt: skip
def test_a_key_that_nothing_reads_is_named(config, overrides, expected):
    assert expected in refusal(config, *overrides)
