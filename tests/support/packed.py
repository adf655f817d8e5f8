"""Training rows in memory."""

from collections.abc import Iterable

from datasets import Dataset

from pasta.data.linearise import Example
from pasta.data.packing import FEATURES, packed_rows


def to_dataset(examples: Iterable[Example], row_length: int) -> Dataset:
    """The rows that ``save_packed`` writes."""
    return Dataset.from_list(list(packed_rows(examples, row_length)), features=FEATURES)
