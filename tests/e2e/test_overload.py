"""A Gateway whose places are all taken: it refuses the next requests at once, and is healthy meanwhile.

Through Ray Serve's own proxy, which would queue such requests, and health checks behind them.
"""

import concurrent.futures
import contextlib
from collections.abc import Iterator

import httpx
import pytest

from tests.support.service import save_tiny_model, service_config, serving
from tests.support.waiting import eventually

PLACES, BEYOND = 3, 12


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Stand-in Decoders write a token each 20 ms: a long answer lasts longer than any test here."""
    folder = tmp_path_factory.mktemp("overload")
    config = service_config(
        folder,
        save_tiny_model(folder / "model"),
        decoder={"num_replicas": 1, "stand_in_ms": 20.0},
        admission={"budget_tokens": 1_000_000},
        max_ongoing_requests=PLACES,
    )
    with (
        serving(config, folder / "log") as service,
        httpx.Client(base_url=service.url, timeout=60) as client,
    ):
        yield client


def body(max_tokens: int, stream: bool) -> dict[str, object]:
    return {"model": "pasta-atlas", "prompt": "Tea is", "max_tokens": max_tokens, "stream": stream}


def ask(http: httpx.Client, stream: bool = False) -> httpx.Response:
    return http.post("/v1/completions", json=body(2, stream))


def asked_at_once(http: httpx.Client, number: int, stream: bool = False) -> list[httpx.Response]:
    """The responses to so many small requests."""
    with concurrent.futures.ThreadPoolExecutor(number) as pool:
        return [each.result() for each in [pool.submit(ask, http, stream) for _ in range(number)]]


@contextlib.contextmanager
def all_places_taken(http: httpx.Client) -> Iterator[list[Iterator[str]]]:
    """The events of so many long answers as there are places, each of which has begun."""
    with contextlib.ExitStack() as stack:

        def begun() -> Iterator[str] | None:
            response = stack.enter_context(http.stream("POST", "/v1/completions", json=body(4000, True)))
            return filter(None, response.iter_lines()) if response.status_code == 200 else None

        # The places of an earlier test are free once the Gateway has seen that their clients have left.
        answers = [eventually(begun, 20.0) for _ in range(PLACES)]
        taken = [events for events in answers if events and next(events)]
        assert len(taken) == PLACES
        yield taken


@pytest.mark.parametrize("stream", [False, True])
def test_requests_beyond_the_places_are_429_and_say_when_to_come_back(http, stream):
    with all_places_taken(http) as taken:
        for response in asked_at_once(http, BEYOND, stream):
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
        # Who has a place goes on: the refused ones did not wait until one was free.
        assert all('"choices"' in next(events) for events in taken)


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models"])
def test_a_service_without_a_free_place_says_that_it_is_well(http, path):
    with all_places_taken(http):
        assert http.get(path).status_code == 200
        assert ask(http).status_code == 429


def test_small_requests_succeed_once_the_places_are_free(http):
    with all_places_taken(http):
        assert ask(http).status_code == 429
    assert eventually(lambda: {each.status_code for each in asked_at_once(http, PLACES)} == {200}, 20.0)
