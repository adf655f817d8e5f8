"""Weights are fetched ahead of their turn where that is faster, which changes no result."""

import itertools
import logging

import pytest
import torch

from pasta.engine import load_model
from pasta.engine.fetching import pays
from tests.engine.test_kernels import formats, linear
from tests.support.kernels import built, needs_kernels
from tests.support.service import save_tiny_model


@needs_kernels
@pytest.mark.parametrize("name", [*formats(), "int4"])
def test_results_are_the_same_with_and_without(name):
    built()
    layer = linear(name, inputs=4 * 1312, outputs=200)
    x = torch.randn(27, 4 * 1312, dtype=torch.bfloat16 if name == "bfloat16" else torch.float32)
    for rows in (1, 3, 5, 7, 8, 13, 24, 27):
        found = []
        for ways in itertools.product([False, True], repeat=3):
            torch.ops.pasta.fetch_ahead(*ways)
            found.append(layer(x[:rows]))
        assert all(torch.equal(found[0], other) for other in found[1:])


def test_it_pays_if_the_fastest_round_was_one_with_it():
    spent = {False: iter([5.0, 3.0, 4.0, 9.0]), True: iter([8.0, 2.9, 7.0, 7.0])}
    assert pays(lambda ahead: next(spent[ahead]))
    spent = {False: iter([5.0, 3.0, 4.0, 9.0]), True: iter([3.0, 3.0, 7.0, 4.0])}
    assert not pays(lambda ahead: next(spent[ahead]))


@needs_kernels
def test_loading_a_model_chooses_for_one_row_for_several_and_for_more(tmp_path, caplog):
    built()
    with caplog.at_level(logging.INFO, "pasta.engine.fetching"):
        load_model(save_tiny_model(tmp_path), dtype="float32", device="cpu")
    (said,) = [record.args for record in caplog.records if record.name == "pasta.engine.fetching"]
    assert set(said) <= {False, True}
    assert len(said) == 3


def test_a_model_without_layers_of_the_kernels_has_nothing_to_choose(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "pasta.engine.fetching"):
        load_model(save_tiny_model(tmp_path), dtype="float32", device="cpu", packed=False)
    assert not [record for record in caplog.records if record.name == "pasta.engine.fetching"]
