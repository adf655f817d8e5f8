"""Clients beside openai's for Python: its own for JavaScript, plain curl, LangChain, lm-eval, and the benchmarks of
vLLM and SGLang. What is large, or needs a torch of its own, is tested where it is installed (docs/serve-a-model.md)."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.paths import ROOT
from tests.support.service import save_tiny_model

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


# -- benchmarks ------------------------------------------------------------------------------------------

#: What each sends by itself (SGLang 0.5.23, vLLM 0.33.0), and what sets it apart.
COMPLETION = {
    "model": "pasta-atlas",
    "prompt": "Tea is",
    "max_tokens": 12,
    "stream": True,
    "ignore_eos": True,
}
CHAT = {"model": "pasta-atlas", "max_completion_tokens": 12, "stream": True, "ignore_eos": True}
TEXT = "Tell me about tea."
BENCHMARKS = {
    "sglang-oai": ("completions", {**COMPLETION, "best_of": 1, "temperature": 0.0, "logprobs": 2}),
    "sglang-oai-chat": (
        "chat/completions",
        {**CHAT, "messages": [{"role": "user", "content": TEXT}], "temperature": 0.0},
    ),
    "vllm openai": ("completions", {**COMPLETION, "repetition_penalty": 1.0, "logprobs": None}),
    "vllm openai-chat": (
        "chat/completions",
        {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]},
    ),
}


@pytest.mark.parametrize("client", BENCHMARKS)
def test_a_benchmark_s_request_gets_as_many_tokens_as_it_asks_for(url, client):
    path, body = BENCHMARKS[client]
    body = {**body, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    answer = httpx.post(f"{url}/v1/{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    *lines, done = [line for line in answer.text.splitlines() if line]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert done == "data: [DONE]"
    # vLLM's takes the first chunk without a choice, SGLang's the last one with text.
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks[-2:]] == [12, 12]
    assert chunks[-1]["choices"] == []


@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")]
)
def test_vllm_s_benchmark_counts_what_it_asked_for(url, tmp_path, backend, endpoint):
    if shutil.which("vllm") is None:
        pytest.skip("no vllm on PATH (an environment of its own, without CUDA: see docs/serve-a-model.md)")
    tokenizer = ROOT / "platform/pasta/data/atlas/models/pasta"
    arguments = f"--backend {backend} --endpoint {endpoint} --base-url {url} --model pasta-atlas --ignore-eos"
    dataset = "--dataset-name random --random-input-len 20 --random-output-len 12 --num-prompts 6"
    command = ["vllm", "bench", "serve", *arguments.split(), *dataset.split(), "--max-concurrency", "2"]
    command += ["--tokenizer", tokenizer, "--save-result", "--save-detailed"]
    command += ["--result-filename", tmp_path / "result.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["errors"] == [""] * 6
    assert result["output_lens"] == [12] * 6


# -- LangChain -------------------------------------------------------------------------------------------


def langchain(url, **options):
    package = pytest.importorskip(
        "langchain_openai", reason="pip install langchain-openai (see docs/serve-a-model.md)"
    )
    return package.ChatOpenAI(
        model="pasta-atlas",
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        **{"temperature": 0, **options},
    )


def test_langchain_s_chat_model_streams_the_text_that_it_gets_whole(url):
    chat = langchain(url, max_tokens=20)
    whole = chat.invoke("Hello")
    assert whole.usage_metadata["output_tokens"] > 0
    assert whole.response_metadata["finish_reason"] in ("stop", "length")
    assert "".join(chunk.content for chunk in chat.stream("Hello")) == whole.content
    assert [answer.content for answer in chat.batch(["Hello", "Hello"])] == [whole.content] * 2


def test_langchain_s_chat_model_sends_back_what_it_got(url):
    chat = langchain(url, max_tokens=20)
    answer = chat.invoke([("system", "Be brief."), ("human", "Hello")])
    assert chat.invoke(
        [("human", "Hello"), answer, ("human", [{"type": "text", "text": "And now?"}])]
    ).content


def test_langchain_s_structured_output_follows_its_schema(url):
    schema = {
        "title": "answer",
        "description": "yes or no",
        "type": "object",
        "properties": {"said": {"enum": ["yes", "no"]}},
        "required": ["said"],
        "additionalProperties": False,
    }
    chat = langchain(url).with_structured_output(schema, method="json_schema")
    assert chat.invoke("Hello")["said"] in ("yes", "no")


# -- lm-eval ---------------------------------------------------------------------------------------------

TASK = """
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
CHOICE = """
task: choice
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: label
metric_list: [{metric: acc}]
"""
GENERATE = """
task: generate
output_type: generate_until
doc_to_target: "{{choices[label]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
"""


@pytest.mark.parametrize(
    ("client", "path", "tasks"),
    [
        ("local-completions", "completions", "choice,generate"),
        ("local-chat-completions", "chat/completions", "generate"),
    ],
)
def test_lm_eval_scores_and_generates(url, tmp_path, client, path, tasks):
    if shutil.which("lm_eval") is None:
        pytest.skip("no lm_eval on PATH (an environment of its own: see docs/serve-a-model.md)")
    rows = tmp_path / "rows.jsonl"
    row = {"question": "Tea is", "choices": [" hot", " a long river"], "label": 0}
    rows.write_text(f"{json.dumps(row)}\n" * 3)
    for name, task in (("choice", CHOICE), ("generate", GENERATE)):
        (tmp_path / f"{name}.yaml").write_text(TASK.format(rows=rows) + task)
    options = f"model=pasta-atlas,base_url={url}/v1/{path},num_concurrent=2,max_length=1000"
    if client == "local-completions":
        options += f",tokenizer={save_tiny_model(tmp_path / 'model')}"
    command = [
        "lm_eval",
        "--model",
        client,
        "--model_args",
        options,
        "--include_path",
        tmp_path,
        "--tasks",
        tasks,
    ]
    command += ["--output_path", tmp_path / "out", "--log_samples"]
    command += ["--apply_chat_template"] if "chat" in client else []
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    samples = {
        file.name.split("_")[1]: [json.loads(line) for line in file.read_text().splitlines()]
        for file in (tmp_path / "out").rglob("samples_*.jsonl")
    }
    assert set(samples) == set(tasks.split(","))
    # The model is random: what counts is that each request was answered, and each score is one.
    assert all(len(sample["filtered_resps"][0]) > 0 for sample in samples["generate"])
    scores = [float(score) for sample in samples.get("choice", ()) for score, _ in sample["filtered_resps"]]
    assert all(score < 0 for score in scores)
    assert len(scores) == (6 if "choice" in tasks else 0)
