"""The models that a Gateway lists, while other replicas are exchanged."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest
from ray.exceptions import RayError

from serve.config import ServeConfig
from serve.gateway.deployment import Gateway
from serve.wire import PromptTokens, Refused
from tests.serve.gateway import conftest

MODELS = {"models": {"m": {"path": "x"}}}
VERSION = ServeConfig.model_validate(MODELS).version


def decoder(version, **formats):
    return {
        "version": version,
        "formats": {name: {"name": f, "why": f"{f} here"} for name, f in formats.items()},
    }


def listed(served, config, stats):
    """What GET /v1/models says of the only model."""

    async def scenario():
        async with served(config, stats=stats) as port, httpx.AsyncClient() as http:
            return await http.get(f"http://127.0.0.1:{port}/v1/models")

    response = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert response.status_code == 200
    return response.json()["data"][0]["pasta"]


def test_in_a_rolling_update_the_formats_are_those_of_the_new_models(served):
    """The Decoders of the old version, which has no model m, or another one, decode to the end of their answers."""
    stats = [
        decoder("old", before="int8"),
        decoder("old", m="int8"),
        {"formats": {}},  # of older code, which told no version
        decoder(VERSION, m="float32"),
    ]
    told = listed(served, MODELS, stats)
    assert (told["dtype"], told["dtype_why"]) == ("float32", "float32 here")


def test_formats_that_the_decoders_machines_chose_differently_are_all_said_with_a_reason_each(served):
    stats = [decoder(VERSION, m=name) for name in ("float32", "bfloat16", "float32")]
    told = listed(served, MODELS, stats)
    assert (told["dtype"], told["dtype_why"]) == ("bfloat16, float32", "bfloat16 here; float32 here")


@pytest.mark.parametrize(("dtype", "why"), [("auto", "not chosen yet"), ("int8", "as configured")])
def test_a_format_has_a_reason_also_where_no_decoder_has_told_one(served, dtype, why):
    told = listed(served, {"models": {"m": {"path": "x", "dtype": dtype}}}, [])
    assert (told["dtype"], told["dtype_why"]) == (dtype, why)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m"])
def test_models_are_told_whichever_interpreter_would_answer_now(served, monkeypatch, path):
    async def scenario():
        async with served({}) as port, httpx.AsyncClient() as http:

            def lost(*_, **__):
                raise RayError("gone, or of the old version, which has other models")

            monkeypatch.setattr(conftest.Interpreter, "options", lost)
            return await http.get(f"http://127.0.0.1:{port}{path}")

    assert asyncio.run(asyncio.wait_for(scenario(), 30)).status_code == 200


def test_without_an_interpreter_that_answers_the_service_is_not_ready(served, monkeypatch):
    # serve.ingress has pickled the class: its module is a copy.
    monkeypatch.setitem(Gateway.__mro__[1]._decoders.__globals__, "_STATS_S", 0.1)

    async def scenario():
        async with served({}) as port, httpx.AsyncClient() as http:
            hangs = SimpleNamespace(remote=lambda *_: asyncio.Event().wait())
            monkeypatch.setattr(conftest.Interpreter, "options", lambda *_, **__: hangs)
            return await http.get(f"http://127.0.0.1:{port}/ready")

    response = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert (response.status_code, response.json()["error"]["code"]) == (503, "service_unavailable")


def test_a_text_is_encoded_by_an_interpreter_that_has_the_model(served, monkeypatch):
    """In a rolling update one of the old version may be asked first, which has no such model."""
    tokens = PromptTokens(2, b"[1,2]", b"null")
    says = [Refused("being updated", status=503, superseded=True), tokens]

    async def remote(*_):
        return says.pop(0)

    async def scenario():
        async with served({}) as port, httpx.AsyncClient() as http:
            monkeypatch.setattr(
                conftest.Interpreter, "options", lambda *_, **__: SimpleNamespace(remote=remote)
            )
            return await http.post(f"http://127.0.0.1:{port}/tokenize", json={"model": "m", "prompt": "a b"})

    response = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert response.status_code == 200
    assert response.json() == {
        "count": 2,
        "max_model_len": 8,
        "tokens": [1, 2],
        "token_strs": None,
    }


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/v1/models/m"])
def test_head_is_answered_as_get_is_without_the_body(served, path):
    async def scenario():
        async with served(MODELS, stats=[decoder(VERSION, m="int8")]) as port, httpx.AsyncClient() as http:
            return [
                await http.request(method, f"http://127.0.0.1:{port}{path}") for method in ("HEAD", "GET")
            ]

    head, get = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert (head.status_code, get.status_code, head.content) == (200, 200, b"")
    assert head.headers["Content-Type"] == get.headers["Content-Type"] == "application/json"
