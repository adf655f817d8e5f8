"""Serves the service's metrics on its own port (``metrics: true``): asks each node of the cluster for what Ray exports
there, and passes on what is the service's own (serve/observe/metrics.py).
"""

import asyncio
from collections.abc import Iterable, Sequence

import httpx
import ray

from serve.errors import unavailable
from serve.ray_start import metrics_url

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The service's own families of metrics, as Ray exports them.
_OURS = "ray_pasta_"
#: How long a node may take: Prometheus itself waits ten seconds.
_NODE_S = 5.0


async def gather() -> str:
    """The metrics of all nodes. Raises ``ApiError`` 503 if no node tells any."""
    urls = await asyncio.to_thread(_nodes)  # asks Ray's control store
    # Nodes speak plain HTTP. httpx would read all certificates of the system first, while no answer streams.
    async with httpx.AsyncClient(timeout=_NODE_S, trust_env=False, verify=False) as http:
        answers = await asyncio.gather(*(http.get(url) for url in urls), return_exceptions=True)
    told, silent = [], []
    for url, answer in zip(urls, answers, strict=True):
        if isinstance(answer, httpx.Response) and answer.is_success:
            told.append(answer.text)
        elif isinstance(answer, httpx.Response | httpx.HTTPError):
            silent.append(url)
        else:
            raise answer
    if not told:
        raise unavailable("No node of the cluster exports metrics.")
    return merged(told, silent)


def _nodes() -> list[str]:
    return [metrics_url(node) for node in ray.nodes() if node["Alive"] and node.get("MetricsExportPort")]


def merged(pages: Iterable[str], silent: Sequence[str] = ()) -> str:
    """One page in Prometheus' text format with the service's metrics on ``pages``, each family's samples together.

    Nodes that did not answer are named in comments: the others' figures are not the whole then.
    """
    heads: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for page in pages:
        family = ""
        for line in page.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                _, kind, family, *_ = line.split(" ", 3)
                if family.startswith(_OURS):
                    heads.setdefault(family, {}).setdefault(kind, line)
            elif family in heads and line and not line.startswith("#"):
                samples.setdefault(family, []).append(line)
    lines = [f"# {url} does not answer" for url in silent]
    for family, head in heads.items():
        lines += [*head.values(), *samples.get(family, ())]
    return "".join(f"{line}\n" for line in lines)
