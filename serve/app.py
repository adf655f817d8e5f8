"""The application: ``serve run configs/serve/local.yaml`` imports ``serve.app:build``.

``python -m serve.run configs/serve/local.yaml`` (make serve) does the same, but says what is wrong with a
configuration in one line before anything starts.
"""

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.schema import LoggingConfig

from serve.config import DecoderSettings, ServeConfig, check_service
from serve.decoder.deployment import Decoder
from serve.gateway.deployment import Gateway
from serve.interpreter.deployment import Interpreter


def build(args: ServeConfig) -> Application:
    """Gateway → Interpreter → Decoder replicas. Raises ``UserError`` if a model cannot be served."""
    check_service(args)
    ongoing = args.max_ongoing_requests
    decoder = args.decoder
    # A replica that is to stop ends what it has begun; it looks often, since nobody else waits for it.
    drain: dict[str, Any] = {
        "graceful_shutdown_timeout_s": args.drain_timeout_s,
        "graceful_shutdown_wait_loop_s": 0.2,
    }
    router = RequestRouterConfig(request_router_class="serve.calls.routing.PinnedRouter")
    # Each request's line is the Gateway's; the others say what became of its parts (serve/observe/logs.py).
    quiet = LoggingConfig(encoding="JSON", enable_access_log=False)
    decoders = serve.deployment(
        Decoder,
        name="Decoder",
        **_replicas(decoder),
        max_surge_percent=decoder.max_surge_percent,
        # An answer is several calls here, and none may wait for another.
        max_ongoing_requests=ongoing * 64,
        request_router_config=router,
        **drain,
        ray_actor_options={
            "num_cpus": decoder.num_cpus,
            "num_gpus": decoder.num_gpus,
            "resources": decoder.resources,
        },
        logging_config=quiet,
    )
    interpreter = serve.deployment(
        Interpreter,
        name="Interpreter",
        max_surge_percent=100,
        max_ongoing_requests=ongoing,
        request_router_config=router,
        **drain,
        ray_actor_options={"num_cpus": args.front.num_cpus, "resources": args.front.resources},
        logging_config=quiet,
    )
    gateway = serve.deployment(
        Gateway,
        name="Gateway",
        max_surge_percent=100,
        max_ongoing_requests=ongoing,
        **drain,
        ray_actor_options={"num_cpus": args.front.num_cpus, "resources": args.front.resources},
        logging_config=LoggingConfig(encoding="JSON"),
    )
    return gateway.bind(args, interpreter.bind(args, decoders.bind(args)))


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
