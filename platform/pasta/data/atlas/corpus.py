"""The atlas as a corpus: its tasks in any proportions, optionally mixed with talk and copying exercises."""

import random
from collections.abc import Iterator, Mapping, Sequence

from pasta.data.atlas.echo import sample_echo
from pasta.data.atlas.families import FAMILIES, weights_of
from pasta.data.atlas.talk.talks import sample_talk
from pasta.data.atlas.tasks import Split, estimated, iter_corpus, sample_task
from pasta.lang import Codec, Document

Annotated = tuple[Sequence[Mapping[str, str]], Document]


def atlas_answers(
    seed: int,
    split: Split,
    count: int,
    *,
    codec: Codec | None = None,
    mixture: Mapping[str, float] | None = None,
    echo: float = 0.0,
    talk: float = 0.0,
) -> Iterator[Annotated]:
    """Messages and annotated answers of ``count`` tasks; estimates are exact with a codec, else provisional.

    Families come in their own proportions, or with each one's weight multiplied by ``mixture``. A share ``talk`` of
    all are conversations instead (of the split dev where tasks are held out: nothing here draws from test), a share
    ``echo`` of the rest are exercises in copying. Raises UserError for a ``mixture`` that ``weights_of`` does not take.
    """
    if not mixture and not echo and not talk:
        for task in iter_corpus(seed, split, count, codec):
            yield task.messages, task.document
        return
    mixture = mixture or {}
    weights = weights_of(mixture)
    names = list(FAMILIES)
    rng = random.Random(f"mixture:{seed}:{split}")
    for _ in range(count):
        if talk and rng.random() < talk:
            spoken = sample_talk(rng, "train" if split == "train" else "dev", codec)
            yield spoken.messages, spoken.document
            continue
        if echo and rng.random() < echo:
            prompt, document = sample_echo(rng)
            yield [{"role": "user", "content": prompt}], document
            continue
        (name,) = rng.choices(names, weights)
        task = estimated(sample_task(rng, split, name), codec)
        yield task.messages, task.document
