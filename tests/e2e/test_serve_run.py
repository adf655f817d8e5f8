"""Ray Serve's own command serves the same file."""

import signal
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from jobs.cluster import free_port
from tests.support.service import START_S, command, save_tiny_model, service_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_serve_run_serves_the_configuration(tmp_path):
    file = service_config(tmp_path, save_tiny_model(tmp_path / "model"))
    config = yaml.safe_load(file.read_text())
    config["http_options"]["port"] = port = free_port()
    file.write_text(yaml.safe_dump(config))
    # Without an address of its own it would join a Ray that happens to run on this machine.
    serve = Path(sys.executable).parent / "serve"
    with command(serve, "run", "--address", "local", file, log=tmp_path / "log") as run:
        answer = None
        deadline = time.monotonic() + START_S
        while answer is None and time.monotonic() < deadline:
            assert run.process.poll() is None, run.output
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=5).raise_for_status().json()
            except httpx.HTTPError:
                time.sleep(0.5)
        assert answer is not None, run.output
        assert [model["id"] for model in answer["data"]] == ["pasta-atlas", "pasta-atlas-sequential"]
        run.end(signal.SIGINT)
        assert run.leaves_nothing()
