"""Random documents, as hypothesis strategies and from a seed."""

import random

from hypothesis import strategies as st

from pasta.lang import CONTROL_TOKENS, Chunk, Document, Sync, Text

#: A prompt and its annotated answer, as a line of JSONL holds them.
ROW = {
    "prompt": "Tell me about France and Japan.",
    "annotated": 'Here: <promise topic="France" tokens="10"/><async>Paris.</async>'
    '<promise topic="Japan" tokens="10"/><async>Tokyo.</async><sync/>Done.',
}

# Text that tries to look like tags, escapes and half characters.
TRICKS = ["\\", "\\\\", '" tokens="20"', ' topic="', "<", "/", ">", "\n", "é", "😀", "<br/>"]
awkward = st.sampled_from([*CONTROL_TOKENS, *TRICKS])
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
texts = st.lists(st.one_of(awkward, plain), min_size=1, max_size=4).map("".join)
topics = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"<>\n\r'), min_size=1, max_size=20
)
estimates = st.integers(1, 200).map(lambda tens: 10 * tens)


def _items(children):
    chunks = st.builds(Chunk, topics, estimates, children)
    return st.lists(st.one_of(st.builds(Text, texts), st.just(Sync()), chunks), max_size=5).map(tuple)


items = st.recursive(
    st.lists(st.one_of(st.builds(Text, texts), st.just(Sync())), max_size=3).map(tuple), _items, max_leaves=12
)
documents = items.map(Document)


def random_document(seed: int, depth: int = 2) -> Document:
    """Sentences with chunks, some nested, some empty, and syncs in every place."""
    rng = random.Random(seed)
    words = ["the", "capital", "of", "France", "water", "boils", "at", "100", "in", "Japan", "é"]

    def text() -> Text:
        return Text(" ".join(rng.choices(words, k=rng.randint(1, 6))) + ".\n")

    def inside(level: int) -> tuple:
        out: list = []
        for _ in range(rng.randint(1, 4)):
            kind = rng.random()
            if kind < 0.45 and level < depth:
                content = inside(level + 1) if rng.random() < 0.9 else ()
                out.append(Chunk(rng.choice(words), 10 * rng.randint(1, 5), content))
            elif kind < 0.6:
                out.append(Sync())
            else:
                out.append(text())
        return tuple(out)

    return Document((text(), *inside(0), text()))
