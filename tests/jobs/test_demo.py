"""The demo of a configuration that serves others (tests/e2e/test_demo.py runs it)."""

import dataclasses

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
