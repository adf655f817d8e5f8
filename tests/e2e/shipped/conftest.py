"""One service of the shipped model for all tests of this folder: first what it tells, then what it survives."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.service import Service, serving, shipped_config

LEASE_S = 2.0
EXPORT_S = 1.0


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two decoders with short leases and no end of requests, whose metrics are exported every second instead of every
    ten."""
    folder = tmp_path_factory.mktemp("shipped")
    config = shipped_config(
        folder,
        decoder={"num_replicas": 2, "lease_s": LEASE_S},
        admission={"budget_tokens": 1_000_000},
    )
    exports = {"RAY_metrics_report_interval_ms": str(int(1000 * EXPORT_S))}
    with serving(config, folder / "log", **exports) as service:
        yield service


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=60) as client:
        yield client
