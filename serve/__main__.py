"""Serve one model on this machine until Ctrl-C, without a configuration file:

    python -m serve MODEL

MODEL is a model directory, or a name on the Hugging Face Hub: a cached model is served without a look at the network,
another one is downloaded. One without control tokens, which PASTA has not trained, is served sequentially. Several
models, limits, placement and clusters need a configuration file: docs/serve-a-model.md.
"""

import argparse
import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any

from pasta.config import parse_config
from pasta.engine.memory import fitting_slot_tokens
from pasta.engine.section import FORMATS_HELP, check_device, check_format
from pasta.engine.snapshots import model_directory
from pasta.entrypoint import CommandParser, run_main
from pasta.errors import UserError
from pasta.names import check_name
from pasta.sizes import MOST_SLOTS, MOST_TOKENS, EngineSizes
from pasta.stages.workers import MOST_WORKERS
from serve.checks import bytes_beside, check_model_directory, download_weights, load_codec
from serve.config import ServeConfig, is_loopback
from serve.imports import uncollected, without_torch
from serve.keys import new_key
from serve.launch import ServiceConfig, check_local, check_port_number, check_ports
from serve.run import loopback_only, say_what_begins, serve_until_stopped

#: The smallest slot that is of use, in tokens: a chat template's own, a short question and a short answer.
_LEAST_SLOT_TOKENS = 64


def main() -> int:
    """Entry point."""
    loopback_only()
    arguments = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="pasta-keys-") as folder:
        with uncollected():
            without_torch()
        config = _config(arguments, Path(folder) / "keys.yaml")
        ((name, model),) = config.args.models.items()
        if model.mode == "sequential":
            print(f"{model.path} has no control tokens: it is served sequentially", flush=True)
        with options_named(name):
            if arguments.slot_tokens is None:
                config = with_fitting_slots(config, arguments.metrics_port)
            engine = config.args.engine
            print(
                f"{engine.num_slots} requests at once (--num-slots), of {engine.slot_tokens:,} tokens at most, prompt "
                "and answer (--slot-tokens)",
                flush=True,
            )
            serve_until_stopped(config, arguments.metrics_port)
    return 0


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    sizes = EngineSizes()
    made = CommandParser(prog="python -m serve", description=(__doc__ or "").split(":\n")[0])
    made.add_argument("model", metavar="MODEL", help="a model directory, or a name on the Hugging Face Hub")
    made.add_argument("--name", help="the model's name for clients; default: the last part of MODEL")
    made.add_argument(
        "--host", default=os.environ.get("PASTA_HOST", "127.0.0.1"), help="default: %(default)s"
    )
    made.add_argument("--port", type=int, default=8000, help="default: %(default)s; 0 takes a free one")
    made.add_argument(
        "--api-key",
        default=os.environ.get("PASTA_API_KEY"),
        help="the key that clients send (or PASTA_API_KEY, which others on this machine cannot read); default: none "
        "on 127.0.0.1, elsewhere a new one, which is printed",
    )
    made.add_argument("--ssl-certfile", help="a certificate (PEM), to listen for HTTPS")
    made.add_argument("--ssl-keyfile", help="its key")
    made.add_argument("--dtype", default="auto", help=f"{FORMATS_HELP}; default: %(default)s")
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N; default: auto")
    made.add_argument("--replicas", type=int, default=1, help="decoders; default: %(default)s")
    made.add_argument(
        "--tensor-parallel",
        type=int,
        default=1,
        help="processes that share the model in each decoder, on GPUs one GPU each; default: %(default)s",
    )
    made.add_argument(
        "--num-slots",
        type=int,
        default=sizes.num_slots,
        help="requests at once in each; default: %(default)s",
    )
    made.add_argument(
        "--slot-tokens",
        type=int,
        help="tokens of cache for a request, prompt and answer; default: as many as the model has positions, 32,768 at "
        f"most, or a power of two (at least {sizes.slot_tokens:,}) for which half of the memory beside the model has "
        "room",
    )
    made.add_argument(
        "--metrics-port", type=int, default=0, help="of Prometheus metrics; default: a free one"
    )
    return made


def _config(arguments: argparse.Namespace, keys: Path) -> ServiceConfig:
    """The configuration that the arguments stand for. Raises ``UserError`` in one line."""
    _check(arguments)
    path = str(Path(arguments.model).resolve()) if Path(arguments.model).is_dir() else arguments.model
    # A link's own name, and not its target's; the root has none.
    name = arguments.name or Path(os.path.abspath(arguments.model)).name or "model"
    model = {"path": path, "dtype": arguments.dtype, "device": arguments.device, "mode": "sequential"}
    processes = max(arguments.replicas, 1) * max(arguments.tensor_parallel, 1)
    threads = max((os.cpu_count() or 1) // processes, 1)
    decoder: dict[str, Any] = {
        "num_replicas": arguments.replicas,
        "tensor_parallel": arguments.tensor_parallel,
        "threads": threads,
    }
    if arguments.device != "cpu" and glob("/dev/nvidia[0-9]*"):
        decoder["num_gpus"] = 1.0
    values: dict[str, Any] = {
        "models": {name: model},
        "engine": {
            "num_slots": arguments.num_slots,
            "slot_tokens": arguments.slot_tokens or EngineSizes().slot_tokens,
        },
        "decoder": decoder,
        # One Gateway on one machine: a proxy of Ray Serve's would pass on each event of an answer, in Python.
        "front": {"proxy": "none"},
    }
    if arguments.api_key is not None:
        new_key(keys, "default", arguments.api_key)
    elif not is_loopback(arguments.host):
        print(f"clients need this key: {new_key(keys, 'default')}", flush=True)
    if keys.exists():
        values["keys"] = {"file": str(keys)}
    config = parse_config(values, ServeConfig, "python -m serve")
    check_model_directory(config.models[name], "MODEL")
    if load_codec(config.models[name], "MODEL").parallel:
        model["mode"] = "parallel"
    config = parse_config(values, ServeConfig, "python -m serve")
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }
    tls = arguments.ssl_certfile, arguments.ssl_keyfile
    return ServiceConfig(arguments.host, arguments.port, "/", config, environment, *tls)


def with_fitting_slots(config: ServiceConfig, metrics_port: int) -> ServiceConfig:
    """The configuration of one model with slots as large as this machine has room for. Downloads the model if it is not
    here, since nobody knows its size before; first it raises ``UserError`` in one line for whatever else is wrong."""
    args = config.args
    ((_, model),) = args.models.items()
    if model_directory(model.location) is None:
        check_local(config)
        check_ports(config, metrics_port)
        download_weights(args, say_what_begins)
    size = fitting_slot_tokens(
        args.engine.num_slots,
        (model.location, model.dtype),
        model.device,
        engines=args.decoder.num_replicas,
        processes=args.decoder.tensor_parallel,
        beside=bytes_beside(args),
    )
    engine = dataclasses.replace(args.engine, slot_tokens=size)
    return dataclasses.replace(config, args=args.model_copy(update={"engine": engine}))


@contextlib.contextmanager
def options_named(name: str) -> Iterator[None]:
    """Name the options in a ``UserError`` of the block that names keys of the configuration, which nobody wrote.
    ``name`` is the model's."""
    options = {
        f"models.{name}.path": "MODEL",
        f"models.{name}.dtype": "--dtype",
        f"models.{name}.device": "--device",
        "decoder.num_replicas": "--replicas",
        "decoder.tensor_parallel": "--tensor-parallel",
        "engine.num_slots": "--num-slots",
        "engine.slot_tokens": "--slot-tokens",
        "ssl_certfile": "--ssl-certfile",
        "ssl_keyfile": "--ssl-keyfile",
    }
    keys = "|".join(map(re.escape, options))
    try:
        yield
    except UserError as error:
        # Keys stand after a space or a parenthesis; values, which may look like them, are quoted or are paths.
        said = re.sub(rf"(?<![^\s(])({keys})(?![\w./-])", lambda found: options[found[1]], str(error))
        raise UserError(said) from None


def _check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError``, naming the option, for a value that no service could start with or answer with."""
    for option, least, most in (
        ("replicas", 1, MOST_WORKERS),
        ("tensor_parallel", 1, MOST_WORKERS),
        ("num_slots", 1, MOST_SLOTS),
        ("slot_tokens", _LEAST_SLOT_TOKENS, MOST_TOKENS),
    ):
        value = getattr(arguments, option)
        if value is not None and not least <= value <= most:
            expected = f"at least {least}" if value < least else f"at most {most:,}"
            raise UserError(f"--{option.replace('_', '-')}: {value}, expected {expected}")
    if not arguments.host.strip():
        raise UserError(f"--host (PASTA_HOST): {arguments.host!r}, expected an address of this machine")
    for option in ("port", "metrics_port"):
        check_port_number(getattr(arguments, option), f"--{option.replace('_', '-')}")
    check_format(arguments.dtype, "--dtype")
    check_device(arguments.device, "--device")
    if arguments.name is not None:
        try:
            check_name(arguments.name)
        except ValueError as error:
            raise UserError(f"--name: {error}") from None


if __name__ == "__main__":
    run_main(main)
