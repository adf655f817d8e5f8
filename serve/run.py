"""Serve on this machine until Ctrl-C:

    python -m serve.run configs/serve/local.yaml

A mistake in the configuration is one line and exit code 2, before anything is started. ``--check`` stops there.
"""

import argparse
import dataclasses
import threading
from pathlib import Path

from pasta.entrypoint import run_main
from serve.config import check_service
from serve.launch import check_port, read_service_config, running


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m serve.run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("config", type=Path, help="a YAML file such as configs/serve/local.yaml")
    parser.add_argument(
        "--port", type=int, default=None, help="instead of http_options.port; 0 takes a free one"
    )
    parser.add_argument(
        "--check", action="store_true", help="only say whether the configuration can be served"
    )
    arguments = parser.parse_args()
    config = read_service_config(arguments.config)
    if arguments.port is not None:
        config = dataclasses.replace(config, port=arguments.port)
    if arguments.check:
        check_service(config.args)
        if config.port:
            check_port(config.host, config.port)
        print(f"{arguments.config}: fine")
        return 0
    with running(config, progress=lambda line: print(f"{line} …", flush=True)) as url:
        print(f"serving {', '.join(config.args.models)} at {url}/v1 (Ctrl-C stops)", flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    run_main(main)
