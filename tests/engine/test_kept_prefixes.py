"""Which prefixes stay when slots run short: the next turns of other conversations should find theirs."""

import pytest

from pasta.engine import SamplingParams
from pasta.engine.choosing import GrammarFailed
from tests.engine.test_prefixes import CHUNK, A, B, Watched, ask


@pytest.mark.slow
@pytest.mark.parametrize("begin", [[], [39]], ids=["unlike prompts", "prompts that begin alike"])
@pytest.mark.parametrize(("order", "kept", "lost"), [("abc", "b", "a"), ("abac", "a", "b")])
def test_the_least_recently_used_prefix_is_overwritten(order, kept, lost, begin):
    e = Watched(num_slots=2)
    prompts = {"a": begin + A, "b": begin + B, "c": [*begin, *range(210, 260)]}
    for name in order:
        e.run(ask(prompts[name]))
    cached = [e.run(ask(prompts[name]))[0][0].cached_tokens for name in (kept, lost)]
    assert cached == [len(prompts[kept]), 0]


def with_a_long_system_prompt(count):
    return [A + B + [number] * 20 for number in range(200, 200 + count)]


def test_a_new_conversation_takes_what_is_shared_and_leaves_another_one_whole_where_a_slot_is_free():
    e, prompts = Watched(), with_a_long_system_prompt(3)
    cached = [e.run(ask(prompt))[0][0].cached_tokens for prompt in 2 * prompts]
    shared = len(A + B) // CHUNK * CHUNK
    assert cached == [0, shared, shared, *map(len, prompts)]


@pytest.mark.slow
def test_of_conversations_with_a_long_system_prompt_the_least_recently_used_one_is_overwritten():
    e = Watched(num_slots=3)
    a, b, c, d = with_a_long_system_prompt(4)
    for prompt in (a, b, c, d):
        e.run(ask(prompt))
    cached = [e.run(ask(prompt))[0][0].cached_tokens for prompt in (b, d, a)]
    assert cached == [len(b), len(d), len(A + B) // CHUNK * CHUNK]


@pytest.mark.slow
def test_answers_to_one_prompt_take_no_further_slots():
    """Each would push another conversation out."""
    e = Watched()
    e.run(ask(B))
    for seed in range(6):
        e.run(ask(A, sampling=SamplingParams(temperature=0.9, seed=seed)))
    assert len(e.engine.prefixes._kept) == 2


def test_an_answer_whose_grammar_fails_costs_no_other_conversation_what_it_has_left(monkeypatch):
    """Anybody may send such a grammar, and all prompts of a chat template begin alike."""
    e = Watched()
    e.run(ask(A))
    following = e.engine._chooser.next_token

    def next_token(lane):
        if lane.rows[0].slot.request.request_id == "broken":
            raise GrammarFailed("the grammar does not go on")
        return following(lane)

    monkeypatch.setattr(e.engine._chooser, "next_token", next_token)
    with pytest.raises(GrammarFailed):
        e.run(ask(A[:30] + B, request_id="broken"))
    assert e.run(ask(A))[0][0].cached_tokens == len(A)
