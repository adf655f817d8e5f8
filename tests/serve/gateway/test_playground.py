"""The playground's files over HTTP: types, caching, headers. What they do in a browser is tests/e2e's."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from pasta.data.atlas import heldout_prompts
from serve.config import ServeConfig
from serve.gateway import playground
from serve.gateway.api import read_chat_request
from serve.interpreter.encoding import RequestEncoder


@pytest.fixture(scope="module")
def http():
    app = FastAPI()
    app.include_router(playground.router)
    return TestClient(app)


class _Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/page/style.css", "text/css; charset=utf-8"),
        ("/page/app.js", "text/javascript; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml"),
    ],
)
def test_files_have_their_type_and_the_security_headers(http, path, kind):
    answer = http.get(path)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == kind
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy, "no other origin is allowed anything"


def test_a_file_that_is_known_is_not_sent_again(http):
    tag = http.get("/page/app.js").headers["ETag"]
    for known in (tag, f'"other", {tag}', f"W/{tag}"):
        again = http.get("/page/app.js", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["ETag"] == tag
    assert http.get("/page/app.js", headers={"If-None-Match": '"other"'}).status_code == 200


def test_head_says_what_get_would(http):
    head, get = http.head("/"), http.get("/")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["Content-Length"] == str(len(get.content))


@pytest.mark.parametrize("name", ["nothing.js", "page.py", "..%2Fpage.py", "..%2f..%2fpyproject.toml", "%00"])
def test_nothing_else_is_served(http, name):
    assert http.get(f"/page/{name}").status_code == 404


def test_the_page_needs_nothing_inline_and_nothing_from_elsewhere(http):
    for tag, attributes in _Tags(http.get("/").text).tags:
        assert tag != "style"
        assert tag != "script" or "src" in attributes
        for name, value in attributes.items():
            assert name != "style"
            assert not name.startswith("on"), f"{tag} {name}"
            if name in {"src", "href"}:
                assert re.fullmatch(r"page/[\w.]+", value), "relative: the service may lie under a prefix"
                assert http.get(f"/{value}").status_code == 200


def test_example_prompts_are_held_out_tasks_of_the_atlas(http):
    examples = [a["data-prompt"] for _, a in _Tags(http.get("/").text).tags if "data-prompt" in a]
    tasks = {task.prompt: task for task in heldout_prompts(200)}
    assert len(examples) >= 4
    assert set(examples) <= set(tasks)
    chunks = [sum(1 for _ in tasks[prompt].document.chunks()) for prompt in examples]
    assert max(chunks) >= 6
    assert min(chunks) == 0, "one of them has nothing to gain, which a visitor should see too"


def in_node(script):
    """What a script that imports the page's modules prints, as JSON."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on PATH")
    command = [node, "--input-type=module", "--eval", script]
    cwd = playground.__file__.rpartition("/")[0]
    return json.loads(subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout)


def test_a_model_that_only_decodes_sequentially_is_asked_for_what_it_can_do():
    empty = dict.fromkeys(["max_threads", "promise_bias", "temperature", "seed", "max_tokens"], "")
    settings = json.dumps({"prompt": "Hi", "race": "off", **empty})
    body = in_node(
        'import { bodyOf } from "./page/settings.js";'
        f'console.log(JSON.stringify(bodyOf({settings}, "m", "parallel")));'
    )
    config = ServeConfig.model_validate(
        {"models": {"m": {"path": "platform/pasta/data/atlas/models/twin", "mode": "sequential"}}}
    )
    order = read_chat_request(json.dumps(body).encode()).order("id")
    (decoded,) = RequestEncoder(config.models["m"], config).decode_orders(order)
    assert not decoded.parallel


def test_a_refusal_calls_a_setting_as_its_label_does(http):
    labels = dict(re.findall(r'<label>([^<]+) <input name="(\w+)"', http.get("/").text))
    assert "max_threads" in labels.values()
    said = in_node(
        'import { problem } from "./page/settings.js";'
        f"console.log(JSON.stringify({json.dumps(list(labels.values()))}.map((name) => problem(name, 'x'))));"
    )
    assert [words.partition(" is ")[0] for words in said] == [label.lower() for label in labels]


def test_a_service_that_has_no_keys_asks_for_none():
    error = {"message": "This service has no API keys.", "param": None, "code": "no_keys_configured"}
    said = in_node(
        'import { refusal } from "./page/sse.js";'
        f"const response = new Response(JSON.stringify({json.dumps({'error': error})}), {{ status: 403 }});"
        "const { message, param } = await refusal(response);"
        "console.log(JSON.stringify([message, param]));"
    )
    assert said == ["The service refuses this request: This service has no API keys.", None]
