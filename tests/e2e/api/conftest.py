"""One service of random weights for all tests of this folder."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.support.service import command, save_tiny_model, service_config


@pytest.fixture(scope="package")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running service with two decoders of three slots each."""
    folder = tmp_path_factory.mktemp("service")
    config = service_config(folder, save_tiny_model(folder / "model"))
    with command("-m", "serve.run", config, "--port", 0, log=folder / "log") as service:
        yield service.wait_for(r"^serving .* at (http://127\.0\.0\.1:\d+)/v1")[1]


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, unmodified."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client
