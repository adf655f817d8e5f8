"""Packed rows: full, complete, and blind to one another's documents."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.data.collate import ThreadCollator
from pasta.data.linearise import make_example
from pasta.data.packing import pack, pack_sees, packed_row, unpack_sees
from pasta.lang import Codec
from pasta.training.masks import install_thread_masks, thread_mask
from tests.support.documents import random_document
from tests.support.models import CONFIGS, tiny
from tests.support.packed import to_dataset
from tests.support.tokenizers import byte_level

CODEC = Codec(byte_level())
MESSAGES = [{"role": "user", "content": "Hi"}]


def _example(seed: int):  # type: ignore[no-untyped-def]
    return make_example(CODEC, MESSAGES, random_document(seed), "pasta")


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 40))
def test_every_document_is_in_one_row_that_it_fits(lengths: list[int], row_length: int) -> None:
    rows = pack(lengths, row_length)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    for row in rows:
        assert len(row) == 1 or sum(lengths[index] for index in row) <= row_length


def test_rows_are_nearly_full() -> None:
    lengths = [37 * n % 90 + 10 for n in range(1000)]
    rows = pack(lengths, 256)
    assert sum(lengths) / (256 * len(rows)) > 0.98


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_visibility_survives_packing(sizes: list[int], random) -> None:  # type: ignore[no-untyped-def]
    matrices = [[random.getrandbits(size) for _ in range(size)] for size in sizes]
    packed = [byte for matrix in matrices for byte in pack_sees(matrix)]
    dense = unpack_sees(packed, sizes)
    offset = 0
    for size, matrix in zip(sizes, matrices, strict=True):
        for row, bits in enumerate(matrix):
            expected = [bool(bits >> column & 1) for column in range(size)]
            assert dense[offset + row, offset : offset + size].tolist() == expected
            assert dense[offset + row].sum() == sum(expected)
        offset += size


def test_documents_of_a_row_do_not_see_each_other() -> None:
    first, second, other = _example(1), _example(2), _example(5)
    model = tiny().model
    handle = install_thread_masks(model)
    try:
        collate = ThreadCollator(pad_id=0)
        with torch.no_grad():
            a = model(**collate([packed_row([first, second])])).logits[
                0, len(first) : len(first) + len(second)
            ]
            b = model(**collate([packed_row([other, second])])).logits[
                0, len(other) : len(other) + len(second)
            ]
    finally:
        handle.remove()
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_padding_is_seen_by_nothing_and_predicts_nothing() -> None:
    short, long = _example(1), _example(2)
    batch = ThreadCollator(pad_id=0, multiple=32)([packed_row([short]), packed_row([long, long])])
    assert batch["input_ids"].shape[1] % 32 == 0
    mask = thread_mask(
        CONFIGS["llama"], batch["segment_ids"], batch["sees"], batch["position_ids"], torch.float32
    )
    assert isinstance(mask, torch.Tensor)
    assert (mask[0, 0, : len(short), len(short) :] < 0).all()
    assert (batch["labels"][0, len(short) :] == -100).all()
    assert int(batch["attention_mask"].sum()) == len(short) + 2 * len(long)


def test_a_data_set_holds_no_dense_masks() -> None:
    examples = [_example(seed) for seed in range(8)]
    dataset = to_dataset(examples, row_length=64)
    assert sum(dataset["length"]) == sum(map(len, examples))
    for row in dataset:
        assert len(row["sees"]) < 8 * len(row["input_ids"])
