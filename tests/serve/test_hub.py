"""A model of the local Hugging Face cache is served without a look at the network; others are downloaded."""

import contextlib
import json
import shutil
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pasta.engine.snapshots import cached
from pasta.errors import UserError
from pasta.sizes import EngineSizes
from serve import hub
from serve.__main__ import _config, parser, with_fitting_slots
from serve.checks import check_served_models, download_weights, load_codec
from serve.config import ModelConfig, ServeConfig
from tests.support.service import save_plain_model, save_tiny_model

NAME = "someone/small"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the Hub's, where the network may be used."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


@pytest.fixture
def no_network(monkeypatch):
    """The hosts that were looked up; none is found."""
    tried = []

    def look_up(host, *_, **__):
        tried.append(host)
        raise socket.gaierror("no network")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return tried


def put(cache, files):
    """Put a model's files into the cache; returns their directory there."""
    kept = cache / "models--someone--small"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs/main").write_text(COMMIT)
    return shutil.copytree(files, kept / "snapshots" / COMMIT)


def refused(call, *arguments):
    with pytest.raises(UserError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_cached_model_is_read_without_a_look_at_the_network(cache, files, no_network):
    folder = put(cache, files)
    model = ModelConfig(path=NAME)
    assert model.location == str(folder)
    assert load_codec(model, "MODEL").parallel
    download_weights(ServeConfig(models={"small": model}), pytest.fail)
    assert no_network == []


def test_the_command_takes_a_cached_model_by_its_name(cache, tmp_path, no_network):
    put(cache, save_plain_model(tmp_path / "plain"))
    config = _config(parser().parse_args([NAME]), tmp_path / "keys.yaml").args
    assert {name: model.mode for name, model in config.models.items()} == {"small": "sequential"}
    assert no_network == []


def test_a_cached_model_of_a_family_that_is_not_supported_is_named(cache, tmp_path, no_network):
    put(cache, save_tiny_model(tmp_path / "model", model_type="gpt2"))
    message = refused(check_served_models, ServeConfig(models={"small": ModelConfig(path=NAME)}))
    assert message.startswith("models.small.path: someone/small: architecture 'gpt2' is not supported")


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_model_that_is_half_in_the_cache_is_not_taken(cache, files, missing):
    folder = put(cache, files)
    (folder / missing).unlink()
    assert cached(NAME) is None


def test_every_file_that_an_index_names_must_be_there(cache, files):
    folder = put(cache, files)
    (folder / "model.safetensors").rename(folder / "model-1-of-2.safetensors")
    weights = {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    assert cached(NAME) is None
    (folder / "model-2-of-2.safetensors").write_bytes(b"")
    assert cached(NAME) == folder


@pytest.mark.parametrize(
    ("files", "weights"),
    [
        (["model-1.safetensors", "model-2.safetensors"], ["model-1.safetensors", "model-2.safetensors"]),
        (["pytorch_model.bin"], ["pytorch_model.bin"]),
        (
            ["draft_heads.safetensors", "model.safetensors", "pytorch_model.bin"],
            ["draft_heads.safetensors", "model.safetensors"],
        ),
    ],
)
def test_weights_are_downloaded_in_one_form(files, weights):
    """Mistral's repositories have them in its own form too, as large."""
    assert [*hub._wanted([*files, "consolidated.safetensors", "a/model.safetensors"], True)] == weights


def test_offline_a_model_that_is_not_cached_is_one_line(cache, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refused(load_codec, ModelConfig(path=NAME), "MODEL")
    assert message.startswith(
        "MODEL: 'someone/small' is neither a directory here nor whole in the local Hugging Face"
    )
    assert "HF_HUB_OFFLINE" in message


def test_without_network_it_is_one_line_at_once(cache, no_network):
    began = time.monotonic()
    assert "cannot be downloaded" in refused(load_codec, ModelConfig(path=NAME), "MODEL")
    assert time.monotonic() - began < 8
    assert no_network


def test_a_network_that_is_silent_is_one_line_soon(cache, monkeypatch):
    monkeypatch.setattr(hub, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        assert "cannot be downloaded" in refused(load_codec, ModelConfig(path=NAME), "MODEL")
        assert time.monotonic() - began < 8


def use(monkeypatch, url):
    """Take models from the Hub at this URL."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        url + "/{repo_id}/resolve/{revision}/{filename}",
    )


@contextlib.contextmanager
def hub_with(files):
    """A server that has one model, and the names of the files that were fetched from it."""
    fetched = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            path = self.path.partition("?")[0].strip("/")
            if path == f"api/models/{NAME}" or path == f"api/models/{NAME}/revision/main":
                siblings = [{"rfilename": file.name} for file in files.iterdir()]
                siblings += [{"rfilename": "onnx/config.json"}, {"rfilename": "model.gguf"}]
                return self.say(json.dumps({"id": NAME, "sha": COMMIT, "siblings": siblings}).encode())
            if path == f"api/models/{NAME}/tree/{COMMIT}":
                sizes = {file.name: file.stat().st_size for file in files.iterdir()}
                sizes |= {"onnx/config.json": 1, "model.gguf": 1}
                tree = [{"type": "file", "path": p, "size": n, "oid": p} for p, n in sizes.items()]
                return self.say(json.dumps(tree).encode())
            file = files / path.rpartition("/")[2]
            if path.startswith(f"{NAME}/resolve/{COMMIT}/") and file.is_file():
                if self.command == "GET":
                    fetched.append(file.name)
                return self.say(file.read_bytes(), **{"X-Repo-Commit": COMMIT, "ETag": f'"{file.name}"'})
            return self.say(b"{}", 404, **{"X-Error-Code": "RepoNotFound"})

        def say(self, body, status=200, **headers):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", fetched
        server.shutdown()


@pytest.mark.slow
def test_a_model_that_is_not_cached_is_downloaded_before_its_slots_are_sized(
    cache, files, tmp_path, monkeypatch, capsys
):
    """What it may be asked for must not depend on whether it has been served before."""
    small = shutil.copytree(files, tmp_path / "small")
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 5000}))
    with hub_with(small) as (url, _):
        use(monkeypatch, url)
        served = _config(parser().parse_args([NAME, "--port", "0"]), tmp_path / "keys.yaml")
        assert served.args.engine.slot_tokens == EngineSizes().slot_tokens
        assert with_fitting_slots(served, 0).args.engine.slot_tokens == 5000
    assert capsys.readouterr().out == "downloading someone/small …\n"


@pytest.mark.slow
def test_a_model_that_is_not_cached_is_checked_by_its_small_files_and_then_downloaded(
    cache, files, monkeypatch
):
    model, said = ModelConfig(path=NAME), []
    with hub_with(files) as (url, fetched):
        use(monkeypatch, url)
        assert load_codec(model, "MODEL").parallel
        assert "model.safetensors" not in fetched
        assert model.location == NAME
        download_weights(ServeConfig(models={"small": model}), said.append)
    assert said == ["downloading someone/small"]
    assert sorted(fetched) == sorted(file.name for file in files.iterdir())
    assert (cached(NAME) / "model.safetensors").read_bytes() == (files / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_name_that_the_hub_does_not_know_is_one_line(cache, files, monkeypatch):
    with hub_with(files) as (url, _):
        use(monkeypatch, url)
        assert "no model of that name" in refused(load_codec, ModelConfig(path="no/body"), "MODEL")
