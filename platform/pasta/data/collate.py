"""Makes a training batch of packed rows: padded tensors, and a compact description of which segments see which."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pasta.data.packing import unpack_sees
from pasta.interpreter import IGNORE

PAD_SEGMENT = -1


@dataclass(frozen=True, slots=True)
class ThreadCollator:
    """Pads packed rows to one length: that of the longest, rounded up to ``multiple``.

    The batch holds ``input_ids``, ``attention_mask`` (1 for tokens), ``position_ids``, ``segment_ids`` (-1 for
    padding), ``shift_labels`` [B, S], ``sees`` (bool [B, G, G]) and, for the trainer to count targets by, ``labels``,
    the same as ``shift_labels``: targets here are aligned already. ``kinds`` [B, S] comes on request.
    """

    pad_id: int
    multiple: int = 64
    with_kinds: bool = False

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        length = max(len(row["input_ids"]) for row in rows)
        length = -(-length // self.multiple) * self.multiple
        fill = {
            "input_ids": self.pad_id,
            "position_ids": 0,
            "segment_ids": PAD_SEGMENT,
            "shift_labels": IGNORE,
        }
        if self.with_kinds:
            fill["kinds"] = 0
        batch = {name: _pad([row[name] for row in rows], length, value) for name, value in fill.items()}
        batch["attention_mask"] = (batch["segment_ids"] != PAD_SEGMENT).long()
        batch["labels"] = batch["shift_labels"]
        matrices = [unpack_sees(row["sees"], row["num_segments"]) for row in rows]
        sees = np.zeros((len(rows), *(2 * [max(map(len, matrices))])), dtype=np.bool_)
        for index, matrix in enumerate(matrices):
            sees[index, : len(matrix), : len(matrix)] = matrix
        batch["sees"] = torch.from_numpy(sees)
        return batch


def _pad(lists: Sequence[Sequence[int]], length: int, value: int) -> Tensor:
    out = np.full((len(lists), length), value, dtype=np.int64)
    for index, values in enumerate(lists):
        out[index, : len(values)] = values
    return torch.from_numpy(out)
