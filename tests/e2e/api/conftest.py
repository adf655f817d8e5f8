"""One service of random weights for all tests of this folder."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.support.service import Service, save_tiny_model, service_config, serving


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that end the service are the last ones, whatever other files are called."""
    items.sort(key=lambda item: item.path.name == "test_shutdown.py")


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two decoders of three slots each."""
    folder = tmp_path_factory.mktemp("service")
    config = service_config(folder, save_tiny_model(folder / "model"))
    with serving(config, folder / "log") as service:
        yield service


@pytest.fixture
def url(service: Service) -> str:
    return service.url


LOST: list[str] = []


@pytest.fixture(autouse=True)
def alive(url: str) -> None:
    """A service that answers no more fails the tests that are left at once, not each of them after a minute."""
    if not LOST:
        try:
            httpx.get(f"{url}/health", timeout=30).raise_for_status()
        except httpx.HTTPError as error:
            LOST.append(f"before this test, or an earlier one, the service had stopped answering: {error!r}")
    if LOST:
        pytest.fail(LOST[0])


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, unmodified."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client
