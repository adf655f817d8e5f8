"""Serve on this machine until Ctrl-C:

    python -m serve.run configs/serve/local.yaml

A mistake in the configuration ends it with one line and exit code 2, before anything starts. ``--check`` checks only.
"""

import dataclasses
import os
import time
from pathlib import Path
from urllib.parse import urlsplit

from pasta.entrypoint import CommandParser, run_main
from pasta.files import write_whole
from serve.imports import uncollected, without_torch
from serve.launch import (
    ServiceConfig,
    check_local,
    check_ports,
    read_service_config,
    running,
)
from serve.ray_start import check_ray

#: How often to see whether Ray still runs.
_LOOK_S = 1.0


def main() -> int:
    """Entry point."""
    loopback_only()
    parser = CommandParser(prog="python -m serve.run", description=(__doc__ or "").split(":\n")[0])
    parser.add_argument("config", type=Path, help="a YAML file such as configs/serve/local.yaml")
    parser.add_argument(
        "--port", type=int, default=None, help="instead of http_options.port; 0 takes a free one"
    )
    parser.add_argument(
        "--metrics-port", type=int, default=0, help="the port of Prometheus metrics; default: a free one"
    )
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    arguments = parser.parse_args()
    with uncollected():
        without_torch()
        config = read_service_config(arguments.config)
    if arguments.port is not None:
        config = dataclasses.replace(config, port=arguments.port)
    if arguments.check:
        check_local(config)
        check_ports(config, arguments.metrics_port)
        print(f"{arguments.config}: fine")
        return 0

    serve_until_stopped(config, arguments.metrics_port)
    return 0


def loopback_only() -> None:
    """Bind Ray's ports to the loopback interface: some need no token, among them that of metrics.

    Ray reads the variable when it is imported; it is named after the systems where that is the default.
    """
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def serve_until_stopped(config: ServiceConfig, metrics_port: int) -> None:
    """Serve until a signal ends the process. Raises ``UserError`` before anything is started, or when Ray has ended."""
    with running(config, progress=say_what_begins, metrics_port=metrics_port) as started:
        write_address(started.url)
        print(f"metrics at {started.metrics}, logs in {started.logs}")
        print(f"serving {', '.join(config.args.models)} at {started.url}/v1 (Ctrl-C stops)", flush=True)
        while True:
            check_ray()
            time.sleep(_LOOK_S)


def say_what_begins(line: str) -> None:
    """Print what begins, as it begins."""
    print(f"{line} …", flush=True)


def write_address(url: str) -> None:
    """Write where the service listens to the file that PASTA_ADDRESS_FILE names, if it is set: the images' health
    check reads it."""
    if file := os.environ.get("PASTA_ADDRESS_FILE"):
        parts = urlsplit(url)
        write_whole(Path(file), f"{parts.scheme}://{parts.netloc}\n")


if __name__ == "__main__":
    run_main(main)
