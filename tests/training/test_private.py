"""Private APIs that training and tracking use are still there: who upgrades a library learns what to look at."""

import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import deepspeed
import pytest
import ray
import transformers
import trl
import wandb
import wandb.env
from deepspeed.runtime.zero import utils as zero_utils
from ray.exceptions import ActorDiedError, OutOfMemoryError
from ray.train import ControllerError, FailureConfig, ScalingConfig, TrainingFailedError, WorkerGroupError
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.constants import CHECKPOINT_MANAGER_SNAPSHOT_FILENAME
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.failure_handling import create_failure_policy
from ray.train.v2._internal.execution.scaling_policy import create_scaling_policy
from ray.train.v2._internal.execution.storage import StorageContext
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from transformers import Trainer
from transformers.integrations import deepspeed as integration
from trl import DPOTrainer, GRPOTrainer
from trl.trainer import utils as trl_utils

from jobs import checkpoint_list, mistakes, training
from pasta import tracking
from pasta.errors import UserError
from pasta.training import bonbon, deepspeed_private, transformers_private
from pasta.training.permitted_pairs import PermittedOutput
from pasta.training.run import RunContext, trainer_arguments
from tests.support.paths import ROOT
from tests.training.ranks import no_report
from tests.training.runs import sft_config

ADAPTERS: dict[ModuleType, ModuleType] = {
    deepspeed: deepspeed_private,
    ray: training,
    transformers: transformers_private,
    trl: bonbon,
    wandb: tracking,
}


def pinned(library: ModuleType) -> str:
    """The version that the adapter names."""
    found = re.search(rf"{library.__name__}\s(\d+\.\d+\.\d+)", ADAPTERS[library].__doc__ or "")
    assert found is not None
    return found[1]


def gone(library: ModuleType, what: str) -> str:
    name = library.__name__
    return (
        f"{name} {library.__version__} has no {what}: {ADAPTERS[library].__name__} was written against {name} "
        f"{pinned(library)}. Adapt that module, or pin that version again."
    )


@pytest.mark.parametrize("library", ADAPTERS, ids=lambda library: library.__name__)
def test_the_pinned_version_is_the_one_that_the_adapter_was_written_against(library: ModuleType):
    name = library.__name__
    locked = re.search(rf"^{name}==(\S+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert locked is not None
    assert locked[1] == pinned(library), (
        f"check each private API that {ADAPTERS[library].__name__} lists, then name the new version"
    )


def test_ray_train_registers_its_interrupt_handler_with_the_method_that_is_replaced():
    what = "TorchTrainer._register_sigint_handler(controller)"
    method = getattr(TorchTrainer, "_register_sigint_handler", None)
    assert method is not None, gone(ray, what)
    assert [*inspect.signature(method).parameters] == ["self", "controller"], gone(ray, what)
    called = {name for cls in TorchTrainer.__mro__ for f in vars(cls).values() for name in names(f)}
    assert "_register_sigint_handler" in called, gone(ray, f"call of {what}")


def names(function: object) -> tuple[str, ...]:
    """Every name that a function's code mentions."""
    code = getattr(function, "__code__", None)
    return code.co_names if code is not None else ()


def test_transformers_moves_a_batch_to_the_device():
    method = getattr(Trainer, "_prepare_inputs", None)
    assert method is not None, gone(transformers, "Trainer._prepare_inputs(inputs)")
    assert [*inspect.signature(method).parameters] == ["self", "inputs"], gone(
        transformers, "Trainer._prepare_inputs(inputs)"
    )


def test_ray_train_writes_its_list_of_checkpoints_into_the_file_that_is_kept_whole():
    assert CHECKPOINT_MANAGER_SNAPSHOT_FILENAME == checkpoint_list.FILE, gone(ray, checkpoint_list.FILE)


def test_ray_train_s_names_of_checkpoints_begin_as_those_that_are_in_no_list():
    name = StorageContext.make_default_checkpoint_dir_name()
    assert name.startswith(checkpoint_list.CHECKPOINT), gone(ray, f"{checkpoint_list.CHECKPOINT}… as a name")


@pytest.mark.parametrize(
    ("local", "needless"), [(True, {training.UNUSED, training.CLEANER}), (False, {training.UNUSED})]
)
def test_ray_train_s_controller_starts_its_helpers_by_callbacks_that_a_job_does_without(
    local: bool, needless: set[str]
):
    trainer = TorchTrainer(print, scaling_config=ScalingConfig(num_workers=1))
    before = [type(each).__name__ for each in trainer._create_default_callbacks()]
    training.without_helpers(trainer, local=local)
    after = [type(each).__name__ for each in trainer._create_default_callbacks()]
    assert needless <= set(before), gone(ray, f"callbacks {needless}")
    assert after == [name for name in before if name not in needless]
    assert "_create_default_callbacks" in names(DataParallelTrainer.fit), gone(ray, "call of it in fit")


def test_ray_train_s_controller_asks_for_machines_by_methods_that_a_local_job_does_without(
    monkeypatch: pytest.MonkeyPatch,
):
    trainer = TorchTrainer(print, scaling_config=ScalingConfig(num_workers=1))
    what = "TorchTrainer._initialize_and_run_controller(scaling_policy)"
    method = getattr(TorchTrainer, "_initialize_and_run_controller", None)
    assert method is not None, gone(ray, what)
    assert method.__name__ in names(DataParallelTrainer.fit), gone(ray, f"call of {what}")
    policy = create_scaling_policy(trainer.scaling_config)
    assert all(callable(getattr(policy, name, None)) for name in training.REQUESTS), gone(
        ray, f"{training.REQUESTS} of a scaling policy"
    )
    found = []
    monkeypatch.setattr(trainer, method.__name__, lambda *, scaling_policy: found.append(scaling_policy))
    training.without_helpers(trainer, local=True)
    trainer._initialize_and_run_controller(scaling_policy=policy)
    (policy,) = found
    policy.after_controller_start(None)  # it would start a Ray
    policy._maybe_send_resource_request()
    assert not ray.is_initialized()


def test_ray_train_s_controller_asks_a_failure_policy_that_a_job_sets_before_its_own(
    monkeypatch: pytest.MonkeyPatch,
):
    trainer = TorchTrainer(print, scaling_config=ScalingConfig(num_workers=1))
    policy = create_failure_policy(FailureConfig(max_failures=1))
    found = []
    monkeypatch.setattr(
        trainer, "_initialize_and_run_controller", lambda *, failure_policy: found.append(failure_policy)
    )
    mistakes.end_at_mistakes(trainer)
    trainer._initialize_and_run_controller(failure_policy=policy)
    (used,) = found
    assert "failure_policy" in inspect.getsource(DataParallelTrainer.fit), gone(ray, "failure_policy in fit")
    lost = WorkerGroupError("lost", {0: RuntimeError("connection reset")})
    assert used.make_decision(lost).name == "RETRY"
    again = pickle.loads(pickle.dumps(used))  # as Ray's controller gets it
    again._policy._worker_group_failures = 0
    mistake = WorkerGroupError("nan", {0: RuntimeError("connection reset"), 1: UserError("w holds nan")})
    assert again.make_decision(mistake).name == "RAISE"


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_death_of_a_process_of_ray_train_s_is_told_from_other_failures(wrapped: bool):
    def failed(cause: Exception) -> TrainingFailedError:
        if not wrapped:
            return pickle.loads(pickle.dumps(ControllerError(cause)))
        return pickle.loads(pickle.dumps(WorkerGroupError("", {1: WorkerHealthCheckFailedError("", cause)})))

    killed = OutOfMemoryError(
        "1 worker(s) were killed. Memory on the node was 2.92GB used / 2.93GB limit (0.99)"
    )
    assert mistakes.death_in(failed(killed)) == (
        "a process of the run died (Ray ended it, since the machine's memory is used up: 2.92GB of 2.93GB); expected "
        "fewer workers, rows or tokens in a row, or a smaller model"
    )
    said = mistakes.death_in(failed(ActorDiedError()))
    assert said is not None
    assert said.startswith("a process of the run died (The actor died unexpectedly")
    assert mistakes.death_in(failed(RuntimeError("a defect"))) is None


def test_deepspeed_compiles_nothing_for_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    what = "comm.torch.build_shm_op()"
    module = deepspeed_private.communication()
    assert hasattr(module, "build_shm_op"), gone(deepspeed, what)
    assert "build_shm_op" in names(module.TorchBackend.__init__), gone(deepspeed, f"call of {what}")
    monkeypatch.setattr(module, "build_shm_op", lambda: pytest.fail("it is compiled"))
    config = sft_config(tmp_path, deepspeed=str(ROOT / "configs/deepspeed/zero2.json"))
    context = RunContext(data_dir=tmp_path, work_dir=tmp_path, use_gpu=False, report=no_report)
    trainer_arguments(config.optimisation, config.schedule, context, evaluates=False)
    assert module.build_shm_op() is None


@pytest.mark.slow
def test_deepspeed_imports_no_compiler_for_an_optimizer_that_is_not_in_use():
    """And its functions are compiled for who uses it."""
    code = (
        "import sys; from pasta.training.deepspeed_private import MUON, import_no_compiler as imports; "
        "imports({'optimizer': {'type': 'Muon'}}); assert MUON not in sys.modules; "
        "imports({}); assert MUON in sys.modules; "
        "from deepspeed.runtime import compiler; print(compiler.compile, 'torch._inductor.compile_fx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, gone(deepspeed, deepspeed_private.MUON) + done.stderr
    assert "<lambda>" not in done.stdout
    assert done.stdout.endswith(" False\n"), gone(deepspeed, "runtime.compiler.compile")
    asked = inspect.getsource(zero_utils.is_zero_supported_optimizer)
    assert f"from {deepspeed_private.MUON} import" in asked, gone(deepspeed, deepspeed_private.MUON)


@pytest.mark.slow
def test_workers_import_no_wandb_until_a_run_is_tracked():
    code = (
        "import sys, pasta.training.sft, pasta.training.preference, pasta.rl.train; "
        "assert 'wandb' not in sys.modules; import wandb; print(wandb.init)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "function init" in done.stdout


def test_transformers_remembers_the_deepspeed_configuration_that_models_are_made_under():
    what = "integrations.integration._hf_deepspeed_config_weak_ref"
    assert hasattr(integration, "_hf_deepspeed_config_weak_ref"), gone(transformers, what)

    class Config:
        """What a weak reference can point at."""

    config = Config()
    integration.set_hf_deepspeed_config(config)
    try:
        with transformers_private.outside_deepspeed():
            assert integration._hf_deepspeed_config_weak_ref is None, gone(transformers, what)
        assert integration._hf_deepspeed_config_weak_ref() is config, gone(transformers, what)
    finally:
        integration.unset_hf_deepspeed_config()


@pytest.mark.parametrize("method", ["_prepare_dataset", "_precompute_ref_logps", "compute_ref_log_probs"])
def test_trl_has_the_method(method: str):
    assert callable(getattr(DPOTrainer, method, None)), gone(trl, f"DPOTrainer.{method}")


def test_trl_s_trainer_prepares_its_data_by_the_method_that_is_overridden():
    assert "_prepare_dataset" in names(DPOTrainer.__init__), gone(trl, "call of DPOTrainer._prepare_dataset")


@pytest.mark.parametrize("attribute", ["precompute_ref_logps", "_precompute_model_hash", "_metrics"])
def test_trl_s_trainer_sets_the_attribute(attribute: str):
    assert attribute in names(DPOTrainer.__init__), gone(trl, f"DPOTrainer.{attribute}")


def test_trl_s_fused_head_yields_log_probabilities():
    source = inspect.getsource(trl_utils)
    for name in ("fused_lm_head", "log_probs"):
        assert name in source, gone(trl, f"{name} in a model's forward")


def test_trl_s_trainer_reads_no_more_of_its_fused_head_than_ours_gives():
    read = set(re.findall(r"outputs\.(\w+)", inspect.getsource(DPOTrainer._compute_loss)))
    ours = {field.name for field in dataclasses.fields(PermittedOutput)}
    assert "log_probs" in read, gone(trl, "outputs.log_probs in DPOTrainer._compute_loss")
    other = {"aux_loss", "log_sum_sq_probs"}  # of models with experts, and of WPO's weights
    assert read - other == ours, gone(trl, "fused head without more fields")


def test_trl_s_grpo_takes_log_probabilities_by_the_method_that_is_overridden():
    what = "GRPOTrainer._get_per_token_logps_and_entropies"
    method = getattr(GRPOTrainer, "_get_per_token_logps_and_entropies", None)
    assert method is not None, gone(trl, what)
    expected = [
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
    ]
    assert [*inspect.signature(method).parameters][:7] == expected, gone(trl, what)
    for caller in ("_generate_and_score_completions", "_compute_loss"):
        assert method.__name__ in inspect.getsource(getattr(GRPOTrainer, caller)), gone(
            trl, f"call of {what}"
        )


@pytest.mark.parametrize("key", ["sampling_per_token_logps", "old_per_token_logps"])
def test_trl_s_grpo_knows_the_key_of_a_batch(key: str):
    for method in (GRPOTrainer._generate_and_score_completions, GRPOTrainer._compute_loss):
        assert f'"{key}"' in inspect.getsource(method), gone(trl, f"key {key} of a batch")


def test_wandb_names_its_service_in_an_environment_variable():
    assert getattr(wandb.env, "SERVICE", None) == "WANDB_SERVICE", gone(wandb, "wandb.env.SERVICE")
