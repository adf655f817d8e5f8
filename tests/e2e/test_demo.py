"""The demo from its first line to its last, and what it leaves behind: nothing."""

import re
import signal
import socket

import pytest

from tests.support.service import START_S, Command, command, save_tiny_model, service_config


@pytest.fixture
def config(tmp_path):
    # Random weights seldom end an answer by themselves: the cache bounds it.
    engine = {"num_slots": 2, "slot_tokens": 320}
    model = save_tiny_model(tmp_path / "model")
    return service_config(tmp_path, model, engine=engine, decoder={"num_replicas": 1})


def demo(config, tmp_path, *options):
    return command("-m", "jobs.demo", "--config", config, *options, log=tmp_path / "log")


def assert_stopped(run: Command):
    assert run.leaves_nothing(), run.descendants()


def test_the_demo_runs_to_its_end_and_leaves_nothing(config, tmp_path):
    with demo(config, tmp_path) as run:
        run.wait_for(r"everything that was started is stopped")
        assert run.process.wait(60) == 0
        assert_stopped(run)
    output = run.output
    assert output.count("\nQ: ") == 3
    assert len(re.findall(r"^sequential +\d+\.\d\d s, +\d+ steps", output, re.MULTILINE)) == 3
    assert len(re.findall(r"^parallel +\d+\.\d\d s, +\d+ steps", output, re.MULTILINE)) == 3
    assert "━" in output
    assert re.search(r"geometric mean \d+\.\d\d\.", output)
    assert "Traceback" not in output


@pytest.mark.parametrize("moment", ["starting Ray", "asking"])
def test_ctrl_c_stops_everything(config, tmp_path, moment):
    with demo(config, tmp_path) as run:
        run.wait_for(moment)
        assert run.end(signal.SIGINT) == 130
        assert_stopped(run)
    assert run.output.endswith("interrupted\n")
    assert "Traceback" not in run.output


def test_a_missing_model_is_one_line(tmp_path):
    with demo(service_config(tmp_path, tmp_path / "nothing"), tmp_path) as run:
        assert run.process.wait(START_S) == 2
    assert re.search(r"^error: models\.pasta-atlas\.path: .*\n\Z", run.output, re.MULTILINE)
    assert "Traceback" not in run.output


def test_a_port_in_use_is_one_line(config, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with demo(config, tmp_path, "--port", other.getsockname()[1]) as run:
            assert run.process.wait(START_S) == 2
    assert re.search(r"^error: .*127\.0\.0\.1:\d+ .*\n\Z", run.output, re.MULTILINE)
    assert "Traceback" not in run.output
