"""Runs the service on this machine, in a Ray of its own, and stops every process again."""

import contextlib
import errno
import logging
import os
import re
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasta.config import parse_config, read_yaml
from pasta.errors import UserError, first_line
from pasta.files import reading
from pasta.heap import trim_heap
from pasta.signals import Terminated, ended_by_sigterm, kept_interrupt
from serve import priority
from serve.checks import check_machine, check_service, check_service_memory, download_weights
from serve.config import ServeConfig, is_loopback
from serve.drain import finish_requests
from serve.ingress import ingress_env, proxy_port
from serve.ray_start import ROOT, environment_with, free_port, metrics_url, python_path, start_ray, stop_ray

IMPORT_PATH = "serve.app:build"
#: The shipped models on this machine: what make serve, the demo and the benchmarks start.
LOCAL = ROOT / "configs" / "serve" / "local.yaml"
#: Names of applications: Ray Serve makes names of files and of replicas from them.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OBJECT_STORE_BYTES = 200 * 1024 * 1024


@dataclass(frozen=True)
class ServiceConfig:
    """A configs/serve/*.yaml file: where to listen, what to serve, the replicas' environment, and the application's
    name in Ray Serve.

    With a certificate and its key (paths of PEM files) it listens for HTTPS.
    """

    host: str
    port: int
    route_prefix: str
    args: ServeConfig
    env_vars: dict[str, str]
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    name: str = "pasta"

    @property
    def http_options(self) -> dict[str, Any]:
        """Ray Serve's options of its proxy, but for the port."""
        files = {"ssl_certfile": self.ssl_certfile, "ssl_keyfile": self.ssl_keyfile}
        return {"host": self.host, **{key: value for key, value in files.items() if value}}


@dataclass(frozen=True)
class Started:
    """A running service: its URL, the URL of its metrics, and the folder of its logs."""

    url: str
    metrics: str
    logs: Path


def read_service_config(path: str | Path) -> ServiceConfig:
    """Read a file in Ray Serve's schema that has one application, ours. Raises ``UserError`` in one line.

    Keys of Ray Serve's that only have an effect on a cluster are refused, not ignored.
    """
    from ray.serve.schema import ServeDeploySchema

    data = read_yaml(path)
    parse_config(data, ServeDeploySchema, str(path))
    applications = data.get("applications") or []
    if len(applications) != 1 or applications[0].get("import_path") != IMPORT_PATH:
        raise UserError(f"{path}: applications: expected exactly one, with import_path {IMPORT_PATH}")
    application = applications[0]
    runtime_env = application.get("runtime_env") or {}
    for key, values, known in (
        ("", data, {"proxy_location", "http_options", "applications"}),
        ("http_options.", data.get("http_options") or {}, {"host", "port", "ssl_certfile", "ssl_keyfile"}),
        ("applications.0.", application, {"name", "route_prefix", "import_path", "runtime_env", "args"}),
        ("applications.0.runtime_env.", runtime_env, {"env_vars"}),
    ):
        if extra := sorted(set(values) - known):
            raise UserError(
                f"{path}: {key}{extra[0]} has no effect when serving from this process; remove it, or use serve deploy"
            )
    # On one machine the head is every node.
    if (location := data.get("proxy_location", "HeadOnly")) == "Disabled":
        raise UserError(
            f"{path}: proxy_location: {location!r}, expected HeadOnly or EveryNode: a service from this process is "
            "reached over HTTP"
        )
    name = application.get("name", ServiceConfig.name)
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{path}: applications.0.name: {name!r}, expected 1 to 64 letters, digits, '.', '_' or '-'"
        )
    variables = parse_config(
        {"env_vars": runtime_env.get("env_vars") or {}},
        dict[str, dict[str, str]],
        f"{path}: applications.0.runtime_env",
    )
    args = parse_config(application.get("args") or {}, ServeConfig, f"{path}: applications.0.args")
    http = data.get("http_options") or {}
    check_port_number(http.get("port", 0), f"{path}: http_options.port")
    host = http.get("host", "127.0.0.1")
    if args.keys.file is None and not is_loopback(host):
        raise UserError(
            f"{path}: http_options.host: {host!r} is open to others; make API keys (python -m serve.keys new) and name "
            "their file in args.keys.file, or listen on 127.0.0.1"
        )
    prefix = application.get("route_prefix", "/")
    if (
        not prefix
        or not prefix.startswith("/")
        or (prefix != "/" and prefix.endswith("/"))
        or set("{}") & set(prefix)
    ):
        raise UserError(
            f"{path}: applications.0.route_prefix: {prefix!r}, expected a path such as /models, with no / at its end "
            "and no braces"
        )
    return ServiceConfig(
        host=host,
        port=http.get("port", 8000),
        route_prefix=prefix,
        args=args,
        env_vars=variables["env_vars"],
        ssl_certfile=http.get("ssl_certfile"),
        ssl_keyfile=http.get("ssl_keyfile"),
        name=name,
    )


def check_port(host: str, port: int, option: str = "--port") -> None:
    """Raise ``UserError`` if the port cannot be bound; the message names the ``option`` to change."""
    check_port_number(port, option)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, UnicodeError) as error:  # a host's name that is none is a UnicodeError
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
                raise UserError(
                    f"cannot listen on {host}:{port} ({reason}); choose another {option}"
                ) from None
            raise UserError(
                f"cannot listen on {host} ({reason}); choose another host: an IPv4 address of this machine, or a name "
                "of one"
            ) from None


def check_ports(config: ServiceConfig, metrics_port: int) -> None:
    """Raise ``UserError``, naming the option, if the service's port or that of its metrics cannot be bound."""
    check_port(config.host, config.port)
    with _claimed(config.host, config.port):
        pass
    if metrics_port:
        check_port("127.0.0.1", metrics_port, "--metrics-port")
        if metrics_port == config.port:
            raise UserError(f"--metrics-port: {metrics_port} is the service's own port; expected another")


@contextlib.contextmanager
def _claimed(host: str, port: int) -> Iterator[None]:
    """Keep other services from the port for the block. Raises ``UserError``.

    Nothing listens there while a service loads its models, and Ray Serve's proxies would share the port of two.
    """
    with socket.socket(socket.AF_UNIX) as name:
        try:
            if port:
                name.bind(f"\0pasta-serve-{port}")  # no file: it goes with this process
        except OSError:
            raise UserError(
                f"cannot listen on {host}:{port} (another service starts or runs there); choose another --port"
            ) from None
        yield


def check_local(config: ServiceConfig) -> None:
    """Raise ``UserError``, naming the key, if the service cannot start on this machine."""
    check_service(config.args)
    check_machine(config.args)
    check_certificate(config)


def check_port_number(port: int, option: str) -> None:
    """Raise ``UserError``, naming the ``option``, if no port can have this number."""
    if not 0 <= port <= 65535:
        raise UserError(f"{option}: {port}, expected a port from 0 to 65535")


def check_certificate(config: ServiceConfig) -> None:
    """Raise ``UserError`` if the certificate and its key cannot be used together."""
    if config.ssl_certfile is None and config.ssl_keyfile is None:
        return
    if config.args.front.proxy == "haproxy":
        raise UserError("ssl_certfile: Ray's HAProxy (front.proxy) speaks no HTTPS; use 'ray' or 'none'")
    for name in ("ssl_certfile", "ssl_keyfile"):
        if not (file := getattr(config, name)):
            raise UserError(f"{name}: it is missing; expected a certificate and its key, or neither")
        if not Path(file).is_file():
            raise UserError(f"{name}: {file!r} is not a file; expected one in PEM format")
        with reading(file, key=name, expected="one in PEM format"):
            content = Path(file).read_bytes()
        if b"-----BEGIN " not in content:
            raise UserError(f"{name}: {file!r} is not in PEM format; expected a text with -----BEGIN … in it")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.ssl_certfile or "", config.ssl_keyfile)
    except OSError as error:  # an SSLError is one
        raise UserError(f"ssl_certfile: it does not go with ssl_keyfile ({first_line(error)})") from None


@contextlib.contextmanager
def running(
    config: ServiceConfig,
    *,
    quiet: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    metrics_port: int = 0,
) -> Iterator[Started]:
    """Start the service in a Ray of its own for the block, and stop every process at its end.

    SIGTERM lets open requests finish first, for ``drain_timeout_s`` at most; Ctrl-C, or a second SIGTERM, does not.
    Port 0 takes a free one. ``quiet`` keeps Ray's log lines off the terminal. Raises
    ``UserError`` before anything is started if the configuration, a model or a port cannot be used.
    """
    progress("checking the models")
    check_local(config)
    check_ports(config, metrics_port)
    port = config.port or free_port(config.host)
    download_weights(config.args, progress)
    check_service_memory(config.args)  # once more: of what was downloaded
    with (
        # Only this user may enter it.
        tempfile.TemporaryDirectory(prefix="pasta-") as folder,
        _claimed(config.host, port),
        ended_by_sigterm(),
        kept_interrupt() as check_interrupt,
    ):
        ingress = ingress_env(config.args.front.proxy, port, Path(folder))
        try:
            ray = _start_ray(config, metrics_port, ingress, quiet=quiet, progress=progress)
            with ended_by_sigterm():  # again: ray.init has replaced the handler
                _check_gpus(config.args)
                gateway = _deploy(config, port, quiet=quiet, progress=progress)
                trim_heap()  # what the tokenizers took that were checked
                check_interrupt()
                try:
                    scheme = "https" if config.ssl_certfile else "http"
                    yield _started(f"{scheme}://{config.host}:{port}{config.route_prefix.rstrip('/')}", ray)
                except Terminated:
                    finish_requests(gateway, config.args.drain_timeout_s, progress)
                    raise
        finally:
            stop_ray()


def _start_ray(
    config: ServiceConfig,
    metrics_port: int,
    ingress: dict[str, str],
    *,
    quiet: bool,
    progress: Callable[[str], None],
) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # By default Ray runs its workers at niceness 15: the service would wait for everything else on the machine.
    os.environ.setdefault("RAY_worker_niceness", "0")
    from serve.calls.ray_serve import PROXY_ENV

    progress("starting Ray")
    # Not as a runtime_env: the workers that Ray starts in advance have none, and could become neither controller nor
    # proxy.
    env_vars = {**PROXY_ENV, **config.env_vars, **ingress, "PYTHONPATH": python_path()}
    with priority.starting(batch=True), environment_with(env_vars):
        return start_ray(
            lambda: progress("Ray was too slow to start; trying once more"),
            address="local",
            num_cpus=max(os.cpu_count() or 1, 1),
            include_dashboard=False,
            _metrics_export_port=metrics_port or None,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=not quiet,
            logging_level=logging.ERROR if quiet else logging.WARNING,
        )


def _check_gpus(config: ServeConfig) -> None:
    """Raise ``UserError`` if the Decoders reserve more GPUs than Ray has found: they would wait for them for ever."""
    import ray

    decoder, found = config.decoder, ray.cluster_resources().get("GPU", 0)
    each = decoder.tensor_parallel * decoder.num_gpus
    if round(decoder.num_replicas * each, 4) > found:
        raise UserError(
            f"decoder.num_replicas: {decoder.num_replicas} of {each:g} GPUs (decoder.num_gpus), but Ray finds "
            f"{found:g} on this machine; expected fewer"
        )


def _started(url: str, context: Any) -> Started:
    import ray

    (node,) = ray.nodes()
    return Started(url, metrics_url(node), Path(context.address_info["session_dir"]) / "logs" / "serve")


def _deploy(config: ServiceConfig, port: int, *, quiet: bool, progress: Callable[[str], None]) -> Any:
    """Deploy the application; returns the Gateway's handle."""
    from ray import serve

    from serve.app import build

    if quiet or config.args.front.proxy == "none":
        # Without a proxy between, Ray would say that the application is ready at the address of its own proxy.
        logging.getLogger("ray.serve").setLevel(logging.ERROR if quiet else logging.WARNING)
    models, replicas = len(config.args.models), config.args.decoder.num_replicas
    progress(
        f"loading {models} model{'s' if models > 1 else ''} in {replicas} decoder replica{'s' if replicas > 1 else ''}"
    )
    own_port = proxy_port(config.args.front.proxy, config.host, port)
    proxy = _start_serve({**config.http_options, "port": own_port})
    try:
        gateway = serve.run(build(config.args), name=config.name, route_prefix=config.route_prefix)
    except RuntimeError as error:
        failure = _failure(str(error))
        if config.args.front.proxy == "none" and failure.startswith("Gateway "):
            check_port(config.host, port)  # others may have taken it meanwhile
        raise UserError(failure) from error
    try:
        proxy.result()
    except RuntimeError:
        check_port(config.host, port)
        raise
    return gateway


def _start_serve(http_options: dict[str, Any]) -> Future[None]:
    """Start Ray Serve's controller, and its proxy meanwhile: replicas need the one and not the other.

    Returns as soon as applications can be deployed; the result is there when the proxy listens.
    """
    from ray import serve

    from serve.calls.ray_serve import controller

    started: Future[None] = Future()

    def start() -> None:
        try:
            serve.start(proxy_location="HeadOnly", http_options=http_options)
            started.set_result(None)
        except BaseException as error:
            started.set_exception(error)

    # No pool's: Ctrl-C would wait for its thread.
    threading.Thread(target=start, name="serve.start", daemon=True).start()
    while not started.done():
        with contextlib.suppress(ValueError):  # there is no such actor yet
            controller()
            break
        time.sleep(0.02)
    if started.done():
        started.result()
    return started


def _failure(otherwise: str) -> str:
    """Why the application does not start: the last line of a failed replica's stack trace, or ``otherwise``."""
    from ray import serve

    for application in serve.status().applications.values():
        for name, deployment in application.deployments.items():
            if deployment.status == "DEPLOY_FAILED" and (lines := deployment.message.strip().splitlines()):
                reason = lines[-1].strip()
                if reason.startswith("ActorDiedError"):
                    reason = "its process died each time (the system kills one for which it has no memory)"
                return f"{name} does not start: {reason}"
    return otherwise
