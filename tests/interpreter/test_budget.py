"""What the tokens of a response are spent on."""

import pytest

from pasta.interpreter import token_budget
from pasta.lang import Chunk, Document, Text
from tests.support.documents import random_document
from tests.support.tokenizers import KINDS, codec


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_is_counted_once_and_text_is_what_is_left_without_tags(kind):
    c = codec(kind)
    for seed in range(60):
        document = random_document(seed)
        ids = [*c.encode(document), c.eos_id]
        budget = token_budget(c.grammar, ids)
        assert sum(budget.values()) == len(ids)
        assert budget["text"] == len([*c.grammar.text_tokens(ids)]) + 1
        chunks = len([*document.chunks()])
        # <promise, its end, and the given <async>.
        assert budget.get("promise", 0) == 3 * chunks
        assert budget.get("async_end", 0) == chunks


def test_a_tag_costs_its_topic_and_its_estimate():
    c = codec()
    document = Document((Text("Rivers: "), Chunk("Seine", 20, (Text("Paris"),))))
    budget = token_budget(c.grammar, [*c.encode(document), c.eos_id])
    opening = c.encode_promise("Seine", 20)
    assert sum(budget[name] for name in ("promise", "topic", "estimate")) == len(opening) + 1  # and <async>
    assert budget["text"] == len(c.encode_text("Rivers: ")) + len(c.encode_text("Paris")) + 1
