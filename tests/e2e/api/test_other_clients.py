"""Clients that are not Python's: OpenAI's own for JavaScript, and plain curl."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "node"


def missing(what):
    """Fail where everything must be tested, as in continuous integration; skip elsewhere."""
    if os.environ.get("PASTA_REQUIRE_TOOLS"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="module")
def javascript(service, tmp_path_factory):
    """What tests/e2e/api/node/client.mjs saw."""
    if shutil.which("npm") is None:
        missing("no npm on PATH (Debian: apt install nodejs npm)")
    folder = tmp_path_factory.mktemp("node")
    for source in SOURCES.iterdir():
        shutil.copy(source, folder)
    install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        missing(f"npm could not install OpenAI's client: {done.stderr[-500:]}")
    command = ["node", "client.mjs", service.url]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_javascript_client_lists_the_models(javascript):
    assert javascript["models"] == ["pasta-atlas", "pasta-atlas-sequential"]


def test_the_javascript_client_streams_the_text_that_it_gets_whole(javascript):
    assert javascript["whole"]["text"]
    for seen in (javascript["streamed"], javascript["whole"]):
        del seen["usage"]["prompt_tokens_details"]  # of what was cached before
    assert javascript["streamed"] == javascript["whole"]
    assert javascript["assembled"] == javascript["whole"]["text"]


def test_the_javascript_client_can_leave_a_stream(javascript):
    assert javascript["aborted"]


def test_the_javascript_client_completes_a_text(javascript):
    assert [choice["index"] for choice in javascript["completions"]] == [0, 1]
    assert {choice["finish_reason"] for choice in javascript["completions"]} <= {"stop", "length"}


def test_the_javascript_client_knows_our_refusals_as_its_own_errors(javascript):
    assert javascript["unsupported"]["bad"]
    assert javascript["unsupported"]["param"] == "tools"
    assert javascript["unknown"]["unknown"]
    assert javascript["unknown"]["code"] == "model_not_found"


def curl(url, *options):
    if shutil.which("curl") is None:
        missing("no curl on PATH (Debian: apt install curl)")
    command = ["curl", "--silent", "--no-buffer", "--max-time", "60", *options, f"{url}/v1/chat/completions"]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout


REQUEST = {"model": "pasta-atlas", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}


def test_curl_gets_an_answer(url):
    # --json sets both headers; --data alone says that it is a form, which is what most people type first.
    for data in ("--json", "--data"):
        answer = json.loads(curl(url, data, json.dumps(REQUEST)))
        assert answer["choices"][0]["finish_reason"] in ("stop", "length")


def test_curl_sees_a_stream_end(url):
    lines = curl(url, "--json", json.dumps({**REQUEST, "stream": True})).splitlines()
    assert lines[-2:] == ["data: [DONE]", ""] or lines[-1] == "data: [DONE]"
    assert all(line == "" or line.startswith("data: ") for line in lines)
