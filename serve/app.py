"""Builds the application; ``serve deploy`` and ``serve run`` import ``serve.app:build``.

``python -m serve.run configs/serve/local.yaml`` (make serve) serves the same application, and reports a mistake in the
configuration in one line before anything starts.
"""

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.schema import LoggingConfig

from serve.calls.ray_serve import REPLICA_ENV
from serve.checks import check_service
from serve.config import DecoderSettings, FrontSettings, ServeConfig
from serve.decoder.deployment import Decoder
from serve.decoder.stand_in import StandInDecoder
from serve.followers import STRATEGY, bundles
from serve.gateway.deployment import Gateway
from serve.imports import uncollected, without_torch
from serve.interpreter.deployment import InterpreterDeployment
from serve.ray_start import GPUS_AS_RESERVED

#: Calls that a replica runs at once: more than ever come. Beyond its bound Ray Serve queues calls without limit, and
#: nobody sees that queue. The Gateways refuse requests instead (``max_ongoing_requests``). One answer makes several
#: calls, and none may wait for another.
_UNBOUNDED = 1_000_000
#: How often Serve asks each replica whether it is well. It replaces a dead one only when that fails: by default up to
#: ten seconds after its death.
_HEALTH_CHECK_S = 1.0


def build(args: ServeConfig) -> Application:
    """Build the deployments Gateway → Interpreter → Decoder. Raises ``UserError`` if a model cannot be served.

    Checks tokenizers, not weights: ``serve deploy`` calls this in a process of its own, which needs no torch.
    """
    with uncollected():
        without_torch()
    check_service(args)
    decoder = args.decoder
    # A stopping replica finishes its requests; this is how often it checks whether any are left.
    drain: dict[str, Any] = {
        "graceful_shutdown_timeout_s": args.drain_timeout_s,
        "graceful_shutdown_wait_loop_s": 0.2,
        "health_check_period_s": _HEALTH_CHECK_S,
    }
    router = RequestRouterConfig(request_router_class="serve.calls.ray_serve.PinnedRouter")
    # The access log is the Gateway's; the other deployments log only events (serve/observe/logs.py).
    quiet = LoggingConfig(encoding="JSON", enable_access_log=False)
    decoders = serve.deployment(
        Decoder if decoder.stand_in_ms is None else StandInDecoder,
        name="Decoder",
        **_replicas(decoder),
        max_surge_percent=decoder.max_surge_percent,
        max_ongoing_requests=_UNBOUNDED,
        request_router_config=router,
        **drain,
        ray_actor_options=_actor(decoder) | {"num_gpus": decoder.num_gpus},
        **_placement(decoder),
        logging_config=quiet,
    )
    interpreter = serve.deployment(
        InterpreterDeployment,
        name="Interpreter",
        num_replicas=args.front.interpreters,
        max_surge_percent=100,
        max_ongoing_requests=_UNBOUNDED,
        request_router_config=router,
        **drain,
        ray_actor_options=_actor(args.front),
        logging_config=quiet,
    )
    gateway = serve.deployment(
        Gateway,
        name="Gateway",
        num_replicas=args.front.gateways,
        max_surge_percent=100,
        max_ongoing_requests=_UNBOUNDED,
        **drain,
        ray_actor_options=_actor(args.front),
        logging_config=LoggingConfig(encoding="JSON"),
    )
    return gateway.bind(args, interpreter.bind(args, decoders.bind(args)))


def _actor(settings: DecoderSettings | FrontSettings) -> dict[str, Any]:
    environment = {"env_vars": {**REPLICA_ENV, **GPUS_AS_RESERVED}}
    return {
        "num_cpus": settings.num_cpus,
        "resources": settings.resources,
        "runtime_env": environment,
    }


def _placement(decoder: DecoderSettings) -> dict[str, Any]:
    if (size := decoder.tensor_parallel) == 1:
        return {}
    return {
        "placement_group_bundles": bundles(size, decoder.num_cpus, decoder.num_gpus, decoder.resources),
        "placement_group_strategy": STRATEGY,
    }


def _replicas(decoder: DecoderSettings) -> dict[str, Any]:
    scaling = decoder.autoscaling
    if scaling is None:
        return {"num_replicas": decoder.num_replicas}
    policy = AutoscalingPolicy(
        policy_function="serve.decoder.autoscaling.LanesPolicy",
        policy_kwargs={"target_lanes": scaling.target_lanes},
    )
    config = AutoscalingConfig(
        **scaling.model_dump(exclude={"target_lanes"}), initial_replicas=decoder.num_replicas, policy=policy
    )
    return {"autoscaling_config": config}
