"""``python -m serve MODEL``: what its arguments stand for, and arguments that no service could start with."""

import gc
import json
import re
import shutil
import socket
from contextlib import nullcontext

import pytest
import torch

from pasta.entrypoint import run_main
from pasta.errors import UserError
from serve import __main__, run
from serve.__main__ import _config, options_named, parser, with_fitting_slots
from serve.checks import bytes_beside, check_service_memory
from serve.launch import Started, check_port
from serve.ray_start import free_port
from tests.support.interrupts import interrupt
from tests.support.paths import ROOT
from tests.support.service import save_plain_model, service_config

MODEL = ROOT / "platform/pasta/data/atlas/models/pasta"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--slot-tokens", "10", "at least 64"),
        ("--num-slots", "0", "at least 1"),
        ("--replicas", "-2", "at least 1"),
        ("--tensor-parallel", "0", "at least 1"),
        ("--port", "99999", "a port from 0 to 65535"),
        ("--metrics-port", "-1", "a port from 0 to 65535"),
        ("--slot-tokens", "99999999", "at most 16,777,216"),
        ("--num-slots", "99999999", "at most 1,048,576"),
        ("--replicas", "99999999", "at most 10,000"),
        ("--tensor-parallel", "99999999", "at most 10,000"),
    ],
)
def test_a_number_that_nothing_can_be_served_with_is_one_line(tmp_path, option, value, expected):
    arguments = parser().parse_args([str(MODEL), option, value])
    with pytest.raises(UserError) as caught:
        _config(arguments, tmp_path / "keys.yaml")
    assert str(caught.value) == f"{option}: {value}, expected {expected}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return save_plain_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["missing"], "MODEL: 'missing' is not a directory"),
        (["/"], "error: MODEL: '/' has no config.json"),
        (["{model}", "--dtype", "float8"], "error: --dtype: 'float8', expected one of auto, float32"),
        (["{model}", "--device", "gpu"], "error: --device: 'gpu', expected auto, cpu, cuda or cuda:N"),
        (["{model}", "--name", "a\tb"], "error: --name: expected one line of text, got 'a\\tb'"),
        (["{model}", "--replicas", "0"], "--replicas: 0, expected at least 1"),
        (["{model}", "--api-key", ""], "--api-key: '', expected text that is not blank"),
        (["{model}", "--api-key", " a"], "the API key: it is empty, has spaces around it"),
        (["{model}", "--ssl-certfile", "a"], "error: --ssl-certfile: 'a' is not a file"),
        (["{model}", "--ssl-keyfile", "a"], "error: --ssl-certfile: it is missing"),
        (["{model}", "--slot-tokens", "-1"], "--slot-tokens: -1, expected at least 64"),
        (["{model}", "--slot-tokens", "65536"], "error: --slot-tokens: 65536, but {model} has "),
        (
            ["{model}", "--num-slots", "1000000", "--device", "cpu"],
            "error: --num-slots: 1000000 of --slot-tokens 2048: the caches of one engine take ",
        ),
        (
            ["{model}", "--tensor-parallel", "3"],
            "error: --tensor-parallel: 3 processes cannot share the model's",
        ),
        (
            ["{model}", "--tensor-parallel", "2", "--dtype", "int8"],
            "error: --dtype: 'int8', but --tensor-parallel is 2; expected one of auto,",
        ),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line(plain, monkeypatch, capsys, arguments, line):
    monkeypatch.setattr("sys.argv", ["serve", *(argument.format(model=plain) for argument in arguments)])
    # Both change the whole process.
    monkeypatch.setattr(__main__, "loopback_only", lambda: None)
    monkeypatch.setattr(__main__, "without_torch", lambda: None)
    with pytest.raises(SystemExit) as ended:
        run_main(__main__.main)
    assert ended.value.code == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: ")
    assert line.format(model=plain) in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--device", "cuda", "--device: 'cuda', but torch finds no CUDA device here; use cpu"),
        ("--dtype", "fp8", "--dtype: 'fp8', but fp8 runs on CUDA GPUs, not on cpu; use auto"),
    ],
)
def test_what_this_machine_cannot_run_is_named_by_its_option(plain, monkeypatch, option, value, told):
    monkeypatch.setattr("sys.argv", ["serve", str(plain), option, value])
    # Both change the whole process.
    monkeypatch.setattr(__main__, "loopback_only", lambda: None)
    monkeypatch.setattr(__main__, "without_torch", lambda: None)
    with pytest.raises(UserError) as caught:
        __main__.main()
    assert str(caught.value) == told


def test_garbage_is_collected_while_it_serves(plain, monkeypatch):
    found = []
    monkeypatch.setattr("sys.argv", ["serve", str(plain)])
    for name in ("loopback_only", "without_torch"):
        monkeypatch.setattr(__main__, name, lambda: None)
    monkeypatch.setattr(__main__, "serve_until_stopped", lambda *_: found.append(gc.isenabled()))
    __main__.main()
    assert found == [True]


def test_a_value_that_is_spelled_like_a_key_stays_as_it_was_typed():
    with pytest.raises(UserError) as caught, __main__.options_named("a"):
        raise UserError(
            "ssl_certfile: 'ssl_certfile' is not a file; models.a.path: './models.a.path' (engine.slot_tokens)"
        )
    assert str(caught.value) == (
        "--ssl-certfile: 'ssl_certfile' is not a file; MODEL: './models.a.path' (--slot-tokens)"
    )


def test_a_name_that_clients_cannot_say_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"^--name: ' ', expected text that is not blank"):
        _config(parser().parse_args([str(MODEL), "--name", " "]), tmp_path / "keys.yaml")


def test_a_port_s_number_in_a_file_is_checked_too():
    with pytest.raises(UserError, match=r"^--port: 70000, expected a port"):
        check_port("127.0.0.1", 70000)


def test_the_options_are_the_service_s(tmp_path):
    options = ["--replicas", "2", "--slot-tokens", "512", "--num-slots", "3", "--name", "mine", "--port", "0"]
    config = _config(parser().parse_args([str(MODEL), *options]), tmp_path / "keys.yaml")
    assert {name: model.path for name, model in config.args.models.items()} == {"mine": str(MODEL)}
    assert config.args.decoder.num_replicas == 2
    assert (config.args.engine.num_slots, config.args.engine.slot_tokens) == (3, 512)
    assert (config.host, config.port, config.args.keys.file) == ("127.0.0.1", 0, None)
    assert config.args.front.proxy == "none", "clients reach the one Gateway themselves"


def test_a_link_s_model_is_called_by_the_link(plain, tmp_path, monkeypatch):
    (tmp_path / "current").symlink_to(plain)
    monkeypatch.chdir(tmp_path)
    ((name, model),) = _config(parser().parse_args(["current/"]), tmp_path / "keys.yaml").args.models.items()
    assert (name, model.path) == ("current", str(plain))


def test_a_blank_host_of_the_environment_is_not_every_interface(tmp_path, monkeypatch):
    monkeypatch.setenv("PASTA_HOST", "")
    with pytest.raises(UserError, match=r"^--host \(PASTA_HOST\): '', expected an address of this machine$"):
        _config(parser().parse_args([str(MODEL)]), tmp_path / "keys.yaml")


def test_a_slot_holds_as_much_as_the_model_s_positions_and_memory_allow(plain, tmp_path, monkeypatch):
    config = json.loads((plain / "config.json").read_text())
    model = shutil.copytree(plain, tmp_path / "model")

    def served(positions, *options):
        (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
        made = _config(parser().parse_args([str(model), *options]), tmp_path / "keys.yaml")
        return with_fitting_slots(made, 0).args

    slots = [served(positions).engine.slot_tokens for positions in (512, 3000, 131_072)]
    assert slots == [512, 3000, 32_768]
    memory = 8 * bytes_beside(served(512))
    monkeypatch.setattr("pasta.engine.memory.machine_memory", lambda: memory)
    most = re.compile(
        r"--num-slots: 100000 of --slot-tokens (2048): .* expected at most ([\d,]+) tokens of cache"
    )
    with pytest.raises(UserError) as refused, options_named("model"):
        check_service_memory(served(131_072, "--num-slots", "100000"))
    room = int(most.search(str(refused.value))[2].replace(",", ""))
    assert served(131_072, "--num-slots", str(room // 2 // 5000)).engine.slot_tokens == 4096


@pytest.mark.parametrize(
    ("port", "metrics_port", "says"),
    [
        ("0", "70000", "--metrics-port: 70000, expected a port"),
        (
            "0",
            "{taken}",
            "cannot listen on 127.0.0.1:{taken} (address already in use); choose another --metrics-port",
        ),
        ("{free}", "{free}", "--metrics-port: {free} is the service's own port; expected another"),
    ],
)
def test_a_check_of_a_configuration_checks_the_port_of_metrics(
    monkeypatch, tmp_path, port, metrics_port, says
):
    file = service_config(tmp_path, MODEL)
    # Both change the whole process.
    monkeypatch.setattr(run, "loopback_only", lambda: None)
    monkeypatch.setattr(run, "without_torch", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        numbers = {"taken": other.getsockname()[1], "free": free_port()}
        options = [word.format(**numbers) for word in ("--port", port, "--metrics-port", metrics_port)]
        monkeypatch.setattr("sys.argv", ["serve.run", str(file), "--check", *options])
        with pytest.raises(UserError, match=re.escape(says.format(**numbers))):
            run.main()


@pytest.mark.parametrize("prefix", ["", "/models"])
def test_a_service_that_listens_says_where_to_the_image_s_health_check(tmp_path, monkeypatch, prefix):
    """Ray Serve answers it beside the application, whatever the application's route is."""
    started = Started(f"https://0.0.0.0:9000{prefix}", "metrics", tmp_path)
    monkeypatch.setattr(run, "running", lambda *_, **__: nullcontext(started))
    monkeypatch.setattr(run, "check_ray", interrupt)
    monkeypatch.setenv("PASTA_ADDRESS_FILE", str(tmp_path / "address"))
    with pytest.raises(KeyboardInterrupt):
        run.serve_until_stopped(_config(parser().parse_args([str(MODEL)]), tmp_path / "keys.yaml"), 0)
    assert (tmp_path / "address").read_text() == "https://0.0.0.0:9000\n"
