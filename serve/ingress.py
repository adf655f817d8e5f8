"""How clients reach a Gateway (``front.proxy``): by Ray Serve's proxy, by its HAProxy, or themselves.

Ray Serve's proxy passes each event of an answer on from replica to client, in Python. With HAProxy, and with no proxy,
a Gateway's replica listens itself. Ray reads which of them it is from the environment when its processes start.
"""

import os
from pathlib import Path

from pasta.errors import UserError
from serve.config import Proxy, ServeConfig
from serve.ray_start import free_port


def check_ingress(config: ServeConfig) -> None:
    """Raise ``UserError``, naming the key, if clients cannot reach the Gateways as configured, or not safely."""
    proxy = config.front.proxy
    if proxy == "haproxy" and config.keys.file is None:
        raise UserError(
            "front.proxy: 'haproxy', but a Gateway behind it does not see who is on this machine, and there are no API "
            "keys (keys.file); make keys, or use 'ray' or 'none'"
        )
    if proxy == "none" and config.front.gateways > 1:
        raise UserError(
            f"front.gateways: {config.front.gateways}, but without a proxy (front.proxy: none) clients reach one; "
            "expected 1"
        )


def check_started(config: ServeConfig) -> None:
    """Raise ``UserError`` in a replica whose Ray was started for another ``front.proxy`` than the configuration's."""
    from serve.calls.ray_serve import started_proxy

    found = started_proxy()
    if found != config.front.proxy:
        raise UserError(
            f"front.proxy: {config.front.proxy!r}, but Ray was started for {found!r} (RAY_SERVE_ENABLE_HA_PROXY and "
            f"RAY_SERVE_ENABLE_DIRECT_INGRESS in the environment of ray start); expected {found!r}"
        )


def proxy_port(proxy: Proxy, host: str, port: int) -> int:
    """The port of Ray Serve's own proxy, which always runs, if clients use ``port``."""
    return free_port(host) if proxy == "none" else port


def ingress_env(proxy: Proxy, port: int, folder: Path) -> dict[str, str]:
    """Environment variables to start Ray with, on one machine; HAProxy keeps its files in ``folder``.

    Its administration socket there is open to whoever may enter the folder. Its statistics are not: it shows them on
    all interfaces, on ports of its own.
    """
    if proxy == "haproxy":
        return {
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_HAPROXY_NBTHREAD": str(min(os.cpu_count() or 1, 4)),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port("")),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port("")),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
            **{
                f"RAY_SERVE_HAPROXY_{name}": str(folder / file)
                for name, file in (
                    ("CONFIG_FILE_LOC", "haproxy.cfg"),
                    ("SOCKET_PATH", "admin.sock"),
                    ("SERVER_STATE_FILE", "state"),
                    ("METRICS_SOCKET_PATH", "log.sock"),
                )
            },
        }
    if proxy == "none":
        return {
            "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
            "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(port),
            "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(port + 1),
            # A Gateway that takes a dead one's place gets its port at once.
            "RAY_SERVE_PORT_QUARANTINE_S": "0",
        }
    return {}
