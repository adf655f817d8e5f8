"""The application: ``serve run configs/serve/local.yaml`` imports ``serve.app:build``.

``python -m serve.run configs/serve/local.yaml`` (make serve) does the same, but says what is wrong with a
configuration in one line before anything starts.
"""

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import LoggingConfig

from serve.config import ServeConfig, check_service
from serve.decoder import Decoder
from serve.gateway import Gateway
from serve.interpreter import Interpreter


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
    # Each request's line is the Gateway's; the others say what became of its parts (serve/logs.py).
    quiet = LoggingConfig(encoding="JSON", enable_access_log=False)
    decoders = serve.deployment(
        Decoder,
        name="Decoder",
        num_replicas=decoder.num_replicas,
        # An answer is several calls here, and none may wait for another.
        max_ongoing_requests=ongoing * 64,
        request_router_config=RequestRouterConfig(request_router_class="serve.routing.PinnedRouter"),
        **drain,
        ray_actor_options={"num_cpus": decoder.num_cpus, "num_gpus": decoder.num_gpus},
        logging_config=quiet,
    )
    interpreter = serve.deployment(
        Interpreter,
        name="Interpreter",
        max_ongoing_requests=ongoing,
        **drain,
        ray_actor_options={"num_cpus": 0.1},
        logging_config=quiet,
    )
    gateway = serve.deployment(
        Gateway,
        name="Gateway",
        max_ongoing_requests=ongoing,
        **drain,
        ray_actor_options={"num_cpus": 0.1},
        logging_config=LoggingConfig(encoding="JSON"),
    )
    return gateway.bind(args, interpreter.bind(args, decoders.bind(args)))
