"""The demo of a configuration that serves others (tests/e2e/test_demo.py runs it)."""

import dataclasses
from types import SimpleNamespace

import pytest
import yaml

from jobs import demo
from serve.launch import LOCAL, read_service_config


def test_it_needs_no_key_and_listens_on_this_machine_alone(tmp_path, monkeypatch):
    values = yaml.safe_load(LOCAL.read_text())
    values["http_options"] = {
        "host": "0.0.0.0",
        "port": 8000,
        "ssl_certfile": "c.pem",
        "ssl_keyfile": "k.pem",
    }
    values["applications"][0]["args"]["keys"] = {"file": "keys.yaml"}
    file, started = tmp_path / "guarded.yaml", []
    file.write_text(yaml.safe_dump(values))

    def running(config, **_):
        started.append(config)
        raise LookupError

    monkeypatch.setattr("sys.argv", ["demo", "--config", str(file)])
    monkeypatch.setattr(demo, "without_torch", lambda: None)
    monkeypatch.setattr(demo, "running", running)
    with pytest.raises(LookupError):
        demo.main()
    assert started == [dataclasses.replace(read_service_config(LOCAL), port=0)]


def test_of_each_model_s_answers_the_one_with_the_median_time_counts(monkeypatch):
    """One answer of 60 ms told a speedup from 0.8 to 1.3 where there is none."""
    times = {"twin": [9.0, 5, 1, 3, 7, 2, 6, 4], "pasta": [9.0, 7, 6, 5, 4, 3, 2, 1]}
    asked = []

    def ask(http, model, prompt):
        asked.append(model)
        return demo.Run("", [], {}, times[model].pop(0))

    monkeypatch.setattr(demo, "ask", ask)
    found = demo.ask_both(None, SimpleNamespace(prompt="?"), "pasta", "twin")
    assert (found.sequential.wall_s, found.parallel.wall_s, found.speedup) == (4.0, 4.0, 1.0)
    assert asked == ["twin", "pasta"] * 8
