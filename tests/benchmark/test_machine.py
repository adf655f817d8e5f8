"""What a record is told apart by: the machine's instructions, its kernels, and every source that is measured."""

import pytest

import pasta
from pasta.benchmark.machine import code_fingerprint, describe_machine, machine_identity
from pasta.engine import kernels


def test_the_instructions_of_products_are_recorded(monkeypatch):
    monkeypatch.setattr(
        kernels, "instructions", lambda: "flags : fpu sse avx2 amx_int8 avx512_bf16 avx512_vnni"
    )
    assert describe_machine()["instructions"] == ["amx_int8", "avx2", "avx512_bf16", "avx512_vnni"]
    assert machine_identity()["instructions"] == describe_machine()["instructions"]


def test_whether_the_kernels_are_there_is_recorded(monkeypatch):
    monkeypatch.setattr(kernels, "ready", lambda: False)
    without = machine_identity()
    monkeypatch.setattr(kernels, "ready", lambda: True)
    assert machine_identity() == without | {"kernels": True}


@pytest.mark.parametrize("name", ["cpp/linear.h", "cpp/kernels.cpp", "engine.py"])
def test_a_changed_source_is_other_code(tmp_path, monkeypatch, name):
    file = tmp_path / "engine" / name
    file.parent.mkdir(parents=True)
    file.write_text("1")
    monkeypatch.setattr(pasta, "__file__", str(tmp_path / "__init__.py"))
    before = code_fingerprint()
    file.write_text("2")
    assert code_fingerprint() != before
