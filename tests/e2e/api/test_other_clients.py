"""Clients beside openai's for Python: its own for JavaScript, plain curl, LangChain, lm-eval, and the benchmarks of
vLLM and SGLang. What is large is tested where it is installed.

``pip install langchain-openai`` adds packages to the project's environment and changes none. lm-eval (``pip install
transformers 'lm-eval[api]'``) needs another version of one, and vLLM is told about in docs/serve-a-model.md: each goes
into an environment of its own, whose ``bin`` is on PATH for these tests.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

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
    package = pytest.importorskip("langchain_openai", reason="pip install langchain-openai")
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
"""
TASKS = {
    "choice": """
task: choice
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: label
metric_list: [{metric: acc}]
""",
    "rolling": """
task: rolling
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}{{choices[1]}}"
metric_list: [{metric: bits_per_byte}]
""",
    "generate": """
task: generate
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[label]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}
ROWS = [
    {"question": "Tea is", "choices": [" hot", " a long river"], "label": 0},
    {"question": "Hello,\nhow is the é", "choices": [" today? 日本", "."], "label": 0},
]


def lm_eval(url, folder, client, path, tasks, *options):
    """The samples of each task, as lm-eval writes them."""
    if shutil.which("lm_eval") is None:
        pytest.skip("no lm_eval on PATH (an environment of its own: pip install transformers 'lm-eval[api]')")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    for name in tasks:
        (folder / f"{name}.yaml").write_text(TASK.format(rows=rows) + TASKS[name])
    served = f"model=pasta-atlas,base_url={url}/v1/{path},num_concurrent=2,max_length=1000"
    if client == "local-completions":
        served += f",tokenizer={save_tiny_model(folder / 'model')}"
    command = ["lm_eval", "--model", client, "--model_args", served, "--include_path", folder]
    command += ["--tasks", ",".join(tasks), "--output_path", folder / "out", "--log_samples", *options]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    samples = {
        file.name.split("_")[1]: [json.loads(line) for line in file.read_text().splitlines()]
        for file in (folder / "out").rglob("samples_*.jsonl")
    }
    assert samples.keys() == {*tasks}
    return samples


def own_score(folder, before, text):
    """The log-likelihood of a text behind another one by transformers alone, and whether each token is the
    likeliest."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = (
        tokenizer(before + text)["input_ids"]
        if before
        else [tokenizer.eos_token_id, *tokenizer(text)["input_ids"]]
    )
    begin = len(tokenizer(before)["input_ids"]) if before else 1
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)[begin - 1 : -1]
    chosen = torch.tensor(ids[begin:])
    return logprobs.gather(1, chosen[:, None]).sum().item(), bool((logprobs.argmax(1) == chosen).all())


def test_lm_eval_s_log_likelihoods_are_the_model_s_own(url, tmp_path):
    samples = lm_eval(url, tmp_path, "local-completions", "completions", ["choice", "rolling"])
    found, own = [], []
    for sample in samples["choice"]:
        for asked, answers in zip(sample["arguments"].values(), sample["resps"], strict=True):
            found.append((float(answers[0][0]), str(answers[0][1]) == "True"))
            own.append(own_score(tmp_path / "model", asked["arg_0"], asked["arg_1"]))
    for sample in samples["rolling"]:
        found.append((float(sample["resps"][0][0]), False))
        own.append((own_score(tmp_path / "model", "", sample["arguments"]["gen_args_0"]["arg_0"])[0], False))
    assert len(found) == 6
    # The service chooses its number format: bfloat16 has three digits.
    assert [score for score, _ in found] == pytest.approx([score for score, _ in own], rel=0.02)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in own]


@pytest.mark.parametrize(
    ("client", "path", "options"),
    [
        ("local-completions", "completions", []),
        ("local-completions", "completions", ["--apply_chat_template"]),
        ("local-chat-completions", "chat/completions", ["--apply_chat_template"]),
    ],
)
def test_lm_eval_generates(url, tmp_path, client, path, options):
    samples = lm_eval(url, tmp_path, client, path, ["generate"], *options)
    # The model is random: what counts is that each request was answered.
    assert [len(sample["filtered_resps"]) for sample in samples["generate"]] == [1] * len(ROWS)
