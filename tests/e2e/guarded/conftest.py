"""Two services with keys that clients reach without Ray Serve's own proxy: through HAProxy, and with nothing between,
which has everything else that guards a service too."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.keys import new_key
from tests.support.service import Service, save_tiny_model, service_config, serving

HERE = Path(__file__).parent
SHIPPED = "platform/pasta/data/atlas/models/pasta"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The service behind HAProxy is gone before the other one starts, which stays to the end."""
    places = [number for number, item in enumerate(items) if item.path.parent == HERE]
    ordered = sorted((items[n] for n in places), key=lambda item: item.path.name == "test_guarded.py")
    for number, item in zip(places, ordered, strict=True):
        items[number] = item


class Guarded:
    """A running service, its keys, and where its logs are."""

    def __init__(self, run: Service, file: Path, keys: dict[str, str], logs: list[Path]) -> None:
        self.run, self.url, self.file, self.keys, self.logs = run, run.url, file, keys, logs

    def client(self, name: str | None = "ann", **options: Any) -> httpx.Client:
        headers = options.pop("headers", {}) | (
            {"Authorization": f"Bearer {self.keys[name]}"} if name else {}
        )
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, **options)


def started(folder: Path, proxy: str, **args: Any) -> Iterator[Guarded]:
    """The service of one Decoder behind ``proxy`` until the next step; then everything that it started is gone."""
    file = folder / "keys.yaml"
    keys = {
        "ann": new_key(file, "ann"),
        "slow": new_key(file, "slow", requests_per_minute=1),
        "rare": new_key(file, "rare", requests_per_minute=1),
        "one": new_key(file, "one", max_concurrent=1),
    }
    model = save_tiny_model(folder / "model", endless=True)
    models = {"random": {"path": str(model)}, **args.pop("models", {})}
    config = service_config(
        folder,
        model,
        models=models,
        front={"proxy": proxy},
        decoder={"num_replicas": 1},
        keys={"file": str(file)},
        **args,
    )
    # Sockets have short paths.
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp", ignore_cleanup_errors=True) as short:
        with serving(config, folder / "log", TMPDIR=short, RAY_TMPDIR=short) as run:
            yield Guarded(run, file, keys, [folder / "log", Path(short)])
        assert run.leaves_nothing()


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """With all that guards a service; one of its models is a shipped one. The last test of test_guarded.py ends it."""
    yield from started(
        tmp_path_factory.mktemp("guarded"),
        "none",
        models={"shipped": {"path": SHIPPED, "dtype": "bfloat16"}},
        admission={"budget_tokens": 6000, "short_tokens": 300, "retry_after_s": 2},
        cors={"allow_origins": ["https://app.example"]},
        metrics=True,
        drain_timeout_s=0.05,
    )


@pytest.fixture(scope="module", params=["haproxy", "none"])
def reached(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Each of the two services."""
    if request.param == "none":
        yield request.getfixturevalue("service")
    else:
        yield from started(tmp_path_factory.mktemp(request.param), request.param)
