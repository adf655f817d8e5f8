"""Nothing needs the kernels: without them torch's own operators serve, and one line says so."""

import re

import pytest
import torch

from pasta.engine import kernels
from pasta.errors import UserError


def test_without_the_library_torch_s_own_operators_serve(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(kernels, "why_not_here", lambda: "")
    monkeypatch.setattr(kernels, "library", lambda: tmp_path / "missing.so")
    kernels.ready.cache_clear()
    try:
        assert not kernels.ready()
        assert "python -m jobs.kernels" in caplog.text
    finally:
        kernels.ready.cache_clear()


def test_a_library_that_cannot_be_loaded_is_said_and_left_alone(monkeypatch, tmp_path, caplog):
    (tmp_path / "broken.so").write_bytes(b"not a library")
    monkeypatch.setattr(kernels, "why_not_here", lambda: "")
    monkeypatch.setattr(kernels, "library", lambda: tmp_path / "broken.so")
    kernels.ready.cache_clear()
    try:
        assert not kernels.ready()
        assert "cannot be loaded" in caplog.text
    finally:
        kernels.ready.cache_clear()


@pytest.mark.parametrize(
    ("compiler", "told"), [("no-such-compiler", "cannot be run"), ("false", "false failed")]
)
def test_no_compiler_is_one_line(monkeypatch, tmp_path, compiler, told):
    monkeypatch.setattr(kernels, "why_not_here", lambda: "")
    monkeypatch.setattr(kernels, "library", lambda: tmp_path / "kernels.so")
    monkeypatch.setattr("torch.utils.cpp_extension.get_cxx_compiler", lambda: compiler)
    with pytest.raises(UserError, match=rf"^kernels: .*{re.escape(told)}.*decoding works without$") as caught:
        kernels.build_extension()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir()), "nothing half made stays"


def test_another_cpu_is_told_why(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(UserError, match="this CPU lacks their instructions"):
        kernels.build_extension()
