"""Ray Serve's own command serves the same file; a service that does not start says why."""

import signal
import sys
from pathlib import Path

import httpx
import yaml
from safetensors.torch import load_file, save_file

from serve.ray_start import free_port
from tests.support.service import START_S, command, save_tiny_model, service_config
from tests.support.waiting import eventually


def test_serve_run_serves_the_configuration(tmp_path):
    file = service_config(tmp_path, save_tiny_model(tmp_path / "model"))
    config = yaml.safe_load(file.read_text())
    config["http_options"]["port"] = port = free_port()
    file.write_text(yaml.safe_dump(config))
    # Without an address of its own it would join a Ray that happens to run on this machine.
    serve = Path(sys.executable).parent / "serve"
    with command(serve, "run", "--address", "local", file, log=tmp_path / "log") as run:

        def models():
            assert run.process.poll() is None, run.output
            return httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=5).raise_for_status().json()

        answer = eventually(models, START_S)
        assert answer is not None, run.output
        assert [model["id"] for model in answer["data"]] == ["pasta-atlas", "pasta-atlas-sequential"]
        run.end(signal.SIGINT)
        assert run.leaves_nothing()


def test_weights_that_nothing_can_be_decoded_with_are_one_line(tmp_path):
    model = save_tiny_model(tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    save_file(
        {name: tensor / 0 for name, tensor in weights.items()}, model / "model.safetensors", {"format": "pt"}
    )
    file = service_config(tmp_path, model)
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
