"""The application that serve.app builds, without starting it."""

from serve.app import build
from serve.calls.ray_serve import REPLICA_ENV
from serve.config import ServeConfig
from serve.ray_start import GPUS_AS_RESERVED
from tests.support.service import save_tiny_model


def deployments(application):
    """The deployments of a bound application by name."""
    bound = application._bound_deployment
    found = {bound.name: bound}
    for argument in bound.init_args:
        if hasattr(argument, "_bound_deployment"):
            found |= deployments(argument)
    return found


def test_every_replica_is_started_with_the_variables_that_the_adapter_needs(tmp_path):
    config = ServeConfig(models={"tiny": {"path": str(save_tiny_model(tmp_path / "model"))}})
    found = deployments(build(config))
    assert set(found) == {"Gateway", "Interpreter", "Decoder"}
    for deployment in found.values():
        assert deployment.ray_actor_options["runtime_env"]["env_vars"] == REPLICA_ENV | GPUS_AS_RESERVED


def test_a_decoder_that_reserves_no_gpu_is_shown_none(tmp_path):
    """By default Ray shows it all GPUs of its machine, and ``device: auto`` would take one."""
    config = ServeConfig(models={"tiny": {"path": str(save_tiny_model(tmp_path / "model"))}})
    options = deployments(build(config))["Decoder"].ray_actor_options
    assert options["num_gpus"] == 0
    assert options["runtime_env"]["env_vars"]["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "1"


def test_the_processes_of_a_decoder_are_on_one_node_with_resources_of_their_own(tmp_path):
    model = {"path": str(save_tiny_model(tmp_path / "model"))}
    decoder = {"tensor_parallel": 2, "num_cpus": 4.0, "num_gpus": 1.0, "resources": {"fast": 0.5}}
    built = deployments(build(ServeConfig(models={"tiny": model}, decoder=decoder)))["Decoder"]
    placed = built._replica_config
    assert placed.placement_group_bundles == [{"CPU": 4.0, "GPU": 1.0, "fast": 0.5}] * 2
    assert placed.placement_group_strategy == "STRICT_PACK"
