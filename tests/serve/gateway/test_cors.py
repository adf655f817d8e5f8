"""Web pages of configured origins may use the API; those of others may not, and by default none may."""

import asyncio

import httpx
import pytest

from pasta.errors import UserError
from serve.checks import check_service
from serve.config import ServeConfig
from serve.keys import new_key

PAGE = "https://app.example"
CORS = {"cors": {"allow_origins": [PAGE, "http://localhost:3000"]}}
READABLE = "access-control-allow-origin"


def preflight(origin=PAGE, **headers):
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-a"}
    return {"Origin": origin, **asked, **headers}


@pytest.fixture
def keys(tmp_path):
    file = tmp_path / "keys.yaml"
    return new_key(file, "ann"), {"keys": {"file": str(file)}}


def test_a_page_of_a_named_origin_is_answered_without_keys(requested):
    response = requested(CORS, "GET", "/v1/models", headers={"Origin": PAGE})
    assert response.status_code == 200
    assert response.headers[READABLE] == PAGE
    assert "Retry-After" in response.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    "origin", ["https://attacker.example", "null", "https://app.example.attacker.example"]
)
def test_a_page_of_another_origin_is_refused_without_keys(requested, origin):
    response = requested(CORS, "GET", "/v1/models", headers={"Origin": origin})
    assert response.status_code == 403
    assert READABLE not in response.headers


def test_an_origin_that_is_named_opens_no_other_door(requested):
    for headers in ({"Host": "attacker.example"}, {"X-Forwarded-For": "10.0.0.4"}):
        assert requested(CORS, "GET", "/v1/models", headers={"Origin": PAGE, **headers}).status_code == 403
    assert requested(CORS, "GET", "/v1/models", peer="10.0.0.4", headers={"Origin": PAGE}).status_code == 403


@pytest.mark.parametrize("private", [{}, {"Access-Control-Request-Private-Network": "true"}])
def test_a_preflight_needs_no_key_and_no_right_peer(requested, keys, private):
    for config in (CORS, {**CORS, **keys[1]}):
        response = requested(
            config, "OPTIONS", "/v1/chat/completions", peer="10.0.0.4", headers=preflight(**private)
        )
        assert response.status_code == 200
        assert response.headers[READABLE] == PAGE
        assert "POST" in response.headers["access-control-allow-methods"]
        assert "authorization" in response.headers["access-control-allow-headers"]
        assert bool(private) == ("access-control-allow-private-network" in response.headers)


def test_a_preflight_of_another_origin_is_refused(requested):
    response = requested(CORS, "OPTIONS", "/v1/models", headers=preflight("https://attacker.example"))
    assert response.status_code == 400
    assert READABLE not in response.headers


def test_a_refusal_can_be_read_by_the_page(requested, keys):
    response = requested({**CORS, **keys[1]}, "GET", "/v1/models", headers={"Origin": PAGE})
    assert (response.status_code, response.headers[READABLE]) == (401, PAGE)


def test_with_keys_the_page_sends_its_key(requested, keys):
    headers = {"Origin": PAGE, "Authorization": f"Bearer {keys[0]}"}
    response = requested({**CORS, **keys[1]}, "GET", "/v1/models", peer="10.0.0.4", headers=headers)
    assert (response.status_code, response.headers[READABLE]) == (200, PAGE)


def test_with_keys_every_origin_may_be_allowed(requested, keys):
    headers = {"Origin": "https://any.example", "Authorization": f"Bearer {keys[0]}"}
    config = {"cors": {"allow_origins": ["*"]}, **keys[1]}
    assert requested(config, "GET", "/v1/models", headers=headers).headers[READABLE] == "*"


def test_by_default_no_page_may_and_preflights_are_no_route(requested, keys):
    response = requested(keys[1], "OPTIONS", "/v1/models", headers=preflight())
    assert response.status_code == 405
    response = requested(keys[1], "GET", "/v1/models", headers={"Origin": PAGE})
    assert READABLE not in response.headers
    assert requested({}, "GET", "/v1/models", headers={"Origin": PAGE}).status_code == 403


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://App.example", "null", ""])
def test_what_no_browser_sends_is_no_origin(origin):
    with pytest.raises(ValueError, match="expected an origin"):
        ServeConfig.model_validate({"models": {"m": {"path": "x"}}, "cors": {"allow_origins": [origin]}})


@pytest.mark.parametrize("origin", ["http://[::1]:3000", "http://127.0.0.1", "chrome-extension://abcdef"])
def test_addresses_and_extensions_are_origins(origin):
    ServeConfig.model_validate({"models": {"m": {"path": "x"}}, "cors": {"allow_origins": [origin]}})


def test_all_origins_without_keys_are_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr("serve.checks.check_served_models", lambda config: None)
    config = ServeConfig.model_validate({"models": {"m": {"path": "x"}}, "cors": {"allow_origins": ["*"]}})
    with pytest.raises(UserError, match=r"cors\.allow_origins: '\*'"):
        check_service(config)


def test_a_failure_can_be_read_by_the_page(served):
    async def scenario():
        config = {**CORS, "models": {"m": {"path": "x"}}}
        # The Gateway asks a Decoder of its own version for the models' number formats, and this one says none.
        stats = [{"version": ServeConfig.model_validate(config).version}]
        async with served(config, stats=stats) as port, httpx.AsyncClient() as http:
            return await http.get(f"http://127.0.0.1:{port}/v1/models", headers={"Origin": PAGE})

    response = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert (response.status_code, response.headers.get(READABLE)) == (500, PAGE)
