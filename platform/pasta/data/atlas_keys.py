"""Checks the keys of configurations that ask for atlas data, before anything is made, and finds the shipped models'
tokenizer. Imports nothing heavy, and the atlas for a mixture of its families only."""

import math
from collections.abc import Mapping
from pathlib import Path

#: Names the embedded world where a data set, prompts or a tokenizer are named.
ATLAS = "atlas"
#: The atlas is made in shards of so many documents, each with a seed of its own.
SHARD_DOCUMENTS = 5000
MAX_SHARDS = 10_000


def shipped_tokenizer() -> Path | None:
    """The directory of a shipped model, with its tokenizer; None where none is installed."""
    models = Path(__file__).parent / "atlas" / "models"
    return min((file.parent for file in models.rglob("tokenizer.json")), default=None)


def check_atlas_keys(
    source: str, counts: Mapping[str, int | None], mixture: Mapping[str, float], echo: float, talk: float
) -> None:
    """Raise ValueError if ``counts`` of documents (by their keys), a ``mixture`` or a share is out of range, or if the
    ``mixture`` names a family that is none.

    Only the source ``atlas`` has families to mix, copying exercises and talk: other sources must leave these keys out.
    """
    most = SHARD_DOCUMENTS * MAX_SHARDS
    for key, count in counts.items():
        if count is not None and not 0 <= count <= most:
            raise ValueError(f"{key} {count}: expected a number from 0 to {most:,}")
    if source != ATLAS and (mixture or echo or talk):
        raise ValueError("mixture, echo, talk: only the atlas has families, exercises and talk")
    for family, weight in mixture.items():
        if not 0.0 <= weight < math.inf:
            raise ValueError(f"mixture.{family} {weight}: expected a finite number of 0 or more")
    if mixture:
        from pasta.data.atlas.families import weights_of

        weights_of(mixture)
    for key, share in (("echo", echo), ("talk", talk)):
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"{key} {share}: expected a share from 0 to 1")
