"""What a record is told apart by: the machine's instructions, its kernels, and every source that is measured."""

import pytest

import pasta
from pasta.benchmark.machine import code_fingerprint, describe_machine, machine_identity, model_fingerprint
from pasta.engine import kernels
from pasta.engine.head_files import weights_fingerprint


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


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "adapter_model.safetensors"])
def test_weights_of_any_kind_tell_a_model_from_others(tmp_path, name):
    (tmp_path / name).write_bytes(b"1")
    before = model_fingerprint(tmp_path)
    (tmp_path / name).write_bytes(b"2")
    assert model_fingerprint(tmp_path) != before


def test_a_model_is_known_by_the_weights_that_are_read(tmp_path):
    """Widened models, and draft heads, are made for them."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"1")
    older = weights_fingerprint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"2")
    assert weights_fingerprint(tmp_path) != older
    (tmp_path / "model.safetensors").write_bytes(b"1")
    both = weights_fingerprint(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    assert weights_fingerprint(tmp_path) == both


def test_a_large_model_is_known_by_more_than_its_beginning(tmp_path):
    """Adapters change all layers and no embeddings, which many files begin with."""
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(200 * 2**20)  # a file of holes takes no room
    before = weights_fingerprint(tmp_path)
    with path.open("r+b") as file:
        file.seek(100 * 2**20)
        file.write(b"1" * 4 * 2**20)
    assert weights_fingerprint(tmp_path) != before
