"""Schemathesis against a running service: every check and phase. Also the hooks that it loads, in its own process."""

import json
import os
import re
import subprocess
import sys
from typing import Any

import schemathesis

from tests.support.paths import ROOT

_MODEL, _TOKEN = "PASTA_TEST_MODEL", "PASTA_TEST_TOKEN"
_STRUCTURES = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice")


def check_page(url: str, model: str, token: int, *options: str) -> str:
    """Have Schemathesis send requests to every operation of the page, for ``model``, with ``token`` as the only token
    id, and return what it printed. Raises ``AssertionError`` with it if anything failed.

    A few requests an operation, always the same ones.
    """
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", "all"]
    command += ["--max-examples", "8", "--seed", "0", "--generation-database", "none"]
    command += ["--request-timeout", "60", "--no-color"]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": __name__, _MODEL: model, _TOKEN: str(token)}
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"Tested: 8$", done.stdout, re.MULTILINE), done.stdout
    return done.stdout


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Make a request that follows the page one that this service can answer: JSON Schema has no words for the rest."""
    if _MODEL not in os.environ or case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if "X-Request-Timeout" in (case.headers or {}):
        case.headers["X-Request-Timeout"] = "60"  # a deadline that passes is 408
    if isinstance(case.body, dict):
        case.body = answerable(json.loads(json.dumps(case.body)), os.environ[_MODEL], int(os.environ[_TOKEN]))


def answerable(body: dict[str, Any], model: str, token: int) -> dict[str, Any]:
    """The same request for a model that is served, with a short answer, ids of its vocabulary, and a valid grammar."""
    body["model"] = model
    body.pop("chat_template_kwargs", None)  # the model's chat template has no variables
    if "tokens" in body:  # of /detokenize
        body["tokens"] = [token for _ in body["tokens"]]
    if "prompt" in body:
        body["prompt"] = _with_tokens(body["prompt"], token)
    if body.get("logit_bias"):
        body["logit_bias"] = {str(token): next(iter(body["logit_bias"].values()))}
    if body.get("stop_token_ids"):
        body["stop_token_ids"] = [token]
    if "max_tokens" in body or "max_completion_tokens" in body:
        # Two names of one number must agree, and a third must not be above it.
        body.pop("max_completion_tokens", None)
        body["max_tokens"] = min(body.get("max_tokens") or 0, 2) if body.get("echo") else 2
    elif {"messages", "prompt"} & set(body) and "add_generation_prompt" not in body:
        body["max_tokens"] = 2
    if body.get("best_of"):
        body["best_of"] = body.get("n") or 1
    if body.get("min_tokens"):
        body["min_tokens"] = min(body["min_tokens"], body.get("max_tokens") or 0)
    if repetition := body.get("repetition_detection"):
        repetition["min_pattern_size"] = 1
    given = [name for name in _STRUCTURES if body.get(name) is not None]
    for name in given[1:]:  # they exclude each other
        del body[name]
    for name in given[:1]:
        _make_valid(name, body)
    return body


def _with_tokens(prompt: Any, token: int) -> Any:
    if isinstance(prompt, list):
        return [_with_tokens(part, token) for part in prompt]
    return prompt if prompt is None else token if isinstance(prompt, int | float) else prompt or "a"


def _make_valid(name: str, body: dict[str, Any]) -> None:
    """Put a schema where any object stands, or text of one, and a regular expression where any other text does."""
    given = body[name]
    if name == "guided_regex":
        body[name] = "[ab]+"
    elif name == "guided_json":
        body[name] = _schema_like(given)
    elif name == "response_format" and given["type"] == "json_schema":
        given["json_schema"]["schema"] = {"type": "array"}
    elif name == "structured_outputs":
        replaced = {"regex": "[ab]+", "json": _schema_like(given.get("json"))}
        body[name] = {key: replaced.get(key, value) for key, value in given.items() if value is not None}


def _schema_like(given: Any) -> Any:
    """A schema, as text where text was given."""
    return '{"type": "array"}' if isinstance(given, str) else {"type": "array"}
