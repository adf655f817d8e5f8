"""A service that does not start says why; ``python -m serve`` serves a model in one line.

Ray Serve's own command: test_several.py.
"""

import signal
import ssl
import subprocess
import sys
import time

import httpx
import openai
import pytest
from safetensors.torch import load_file, save_file

from tests.support.paths import ROOT
from tests.support.service import START_S, command, save_plain_model, save_tiny_model, service_config

#: How many Decoders there are is no matter here.
ONE = {"num_replicas": 1}


def test_weights_that_nothing_can_be_decoded_with_are_one_line(tmp_path):
    model = save_tiny_model(tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    for name in weights.keys() - {"model.embed_tokens.weight"}:
        weights[name].fill_(3e38)  # finite, but no sum of these is
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    file = service_config(tmp_path, model, decoder=ONE)
    with command("-m", "serve.run", file, "--port", 0, log=tmp_path / "log") as run:
        assert run.process.wait(START_S) == 2, run.output
        assert run.leaves_nothing()
    errors = [line for line in run.output.splitlines() if line.startswith("error: ")]
    expected = (
        "error: Decoder does not start: pasta.errors.UserError: models.pasta-atlas: the logits are not finite"
    )
    assert len(errors) == 1
    assert errors[0].startswith(expected)
    assert "Traceback" not in run.output.partition("error: ")[2]


def test_sigterm_while_it_loads_ends_it_and_a_second_one_leaves_no_process(tmp_path):
    file = service_config(tmp_path, save_tiny_model(tmp_path / "model"), decoder=ONE)
    with command("-m", "serve.run", file, "--port", 0, log=tmp_path / "log") as run:
        run.wait_for("^loading")
        time.sleep(3)  # its replicas start
        run.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        # Negative where nothing was left to end: the second one came as Python itself did.
        assert run.end(signal.SIGTERM) in (128 + signal.SIGTERM, -signal.SIGTERM)
        assert run.leaves_nothing()
    assert "Traceback" not in run.output


def certificate(folder):
    """The options of a certificate for this machine, made for the test."""
    files = folder / "cert.pem", folder / "key.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(made, check=True, capture_output=True)
    return ["--ssl-certfile", files[0], "--ssl-keyfile", files[1]]


def test_a_model_that_pasta_has_not_trained_is_served_in_one_line_over_https(tmp_path):
    model, tls = save_plain_model(tmp_path / "plain-model"), certificate(tmp_path)
    trusted = httpx.Client(verify=ssl.create_default_context(cafile=tls[1]))
    options = ["--port", 0, "--api-key", "secret", *tls]
    # As in many companies: an HTTP proxy, which no call within the service may take.
    web = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    with command("-m", "serve", model, *options, log=tmp_path / "log", **web) as run, trusted:
        url = run.wait_for(r"^serving plain-model at (https://127\.0\.0\.1:\d+/v1)")[1]
        assert "it is served sequentially" in run.output
        with openai.OpenAI(base_url=url, api_key="secret", max_retries=0, http_client=trusted) as client:
            hello = [{"role": "user", "content": "Hello"}]
            answer = client.chat.completions.create(model="plain-model", messages=hello, max_tokens=5)
            assert answer.usage.completion_tokens > 0
            text = client.completions.create(model="plain-model", prompt="Hello", max_tokens=5)
            assert text.usage.completion_tokens > 0
            with pytest.raises(openai.BadRequestError, match="only decodes sequentially"):
                client.chat.completions.create(
                    model="plain-model", messages=hello, extra_body={"pasta": {"mode": "parallel"}}
                )
            with pytest.raises(openai.AuthenticationError):
                client.with_options(api_key="wrong").models.list()
        run.end(signal.SIGINT)
        assert run.leaves_nothing()


def test_a_mistake_in_the_arguments_is_one_line(tmp_path):
    """The others: tests/serve/test_main.py."""
    model = save_plain_model(tmp_path / "model")
    arguments = [sys.executable, "-m", "serve", str(model), "--ssl-certfile", "a"]
    run = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=START_S)
    assert run.returncode == 2
    (error,) = run.stderr.strip().splitlines()
    assert error.startswith("error: --ssl-certfile: 'a' is not a file")
