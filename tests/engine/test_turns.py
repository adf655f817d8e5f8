"""A conversation's next turn is prefilled while the engine is idle, and only then."""

import pytest

from pasta.engine import Engine, EngineConfig, kernels
from pasta.lang import turn_tail
from tests.engine.test_prefixes import CHUNK, LIMITS, LOADED, Watched, ask
from tests.support.models import tiny

CODEC = LOADED.codec
HELLO = [{"role": "user", "content": "Tell me about France and its rivers"}]


def chat(messages, **fields):
    return ask(CODEC.encode_prompt(messages), conversation=True, **fields)


def answered(messages, text, question="And Italy?"):
    return [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": question}]


@pytest.mark.parametrize("parallel", [True, False])
def test_the_next_turn_only_feeds_its_own_message(parallel):
    e = Watched(slot_tokens=1024)
    (first,), _ = e.run(chat(HELLO, parallel=parallel))
    (second,), _ = e.run(chat(answered(HELLO, first.text), parallel=parallel))
    new = len(CODEC.encode_text("And Italy?"))
    tail = second.prompt_tokens - len(CODEC.encode_prompt(HELLO)) - len(CODEC.encode_text(first.text)) - new
    assert second.prompt_tokens - second.cached_tokens <= new + tail + CHUNK
    cold = Watched(slot_tokens=1024, reuse_prefixes=False)
    (expected,), _ = cold.run(chat(answered(HELLO, first.text), parallel=parallel))
    assert second.response_ids == expected.response_ids


def test_the_same_prompt_again_is_still_not_fed_at_all():
    e = Watched(slot_tokens=1024)
    (first,), _ = e.run(chat(HELLO))
    (again,), _ = e.run(chat(HELLO))
    assert again.cached_tokens == again.prompt_tokens
    assert again.response_ids == first.response_ids


def test_what_is_computed_ahead_is_counted_apart():
    e = Watched()
    e.run(chat(HELLO))
    counts = e.engine.prefixes.counts
    assert counts.ahead > 0
    assert (counts.looked_up, counts.hit) == (len(CODEC.encode_prompt(HELLO)), 0)


def test_another_thread_never_reads_lower_counts(monkeypatch):
    """A Decoder reports by how much they have grown."""
    e, read = Watched(), []
    hold = e.engine.runner.hold

    def watched(*args):
        read.append(e.engine.prefixes.counts.looked_up)
        hold(*args)

    monkeypatch.setattr(e.engine.runner, "hold", watched)
    e.run(chat(HELLO))
    assert read == [len(CODEC.encode_prompt(HELLO))]


@pytest.mark.parametrize(
    ("sizes", "fields"),
    [({"prefill_ahead": False}, {}), ({"reuse_prefixes": False}, {}), ({}, {"conversation": False})],
    ids=["switched off", "without reuse", "no conversation"],
)
def test_nothing_is_computed_ahead(sizes, fields):
    e = Watched(**sizes)
    e.run(chat(HELLO).replace(**fields))
    assert e.engine.prefixes.counts.ahead == 0


def test_a_request_that_comes_is_served_at_once():
    """What was computed by then stays."""
    e = Watched(slot_tokens=1024)
    e.engine.submit(chat(HELLO))
    while e.engine.num_active or e.engine.num_waiting:
        e.engine.step()
    e.engine.step()  # one chunk ahead
    assert e.engine.turns.pending
    ahead = e.engine.prefixes.counts.ahead
    assert ahead > 0
    request_id = e.engine.submit(ask(request_id="next"))
    events = e.engine.step()
    while not events:
        events = e.engine.step()
    assert {event.request_id for event in events} == {request_id}
    assert e.engine.prefixes.counts.ahead == ahead


def test_another_key_finds_nothing_of_it():
    e = Watched(slot_tokens=1024)
    (first,), _ = e.run(chat(HELLO, cache_salt="a"))
    (second,), _ = e.run(chat(answered(HELLO, first.text), cache_salt="b"))
    assert second.cached_tokens == 0


def test_a_turn_whose_prompt_is_gone_takes_no_other_ones_slot():
    """Prompts of one chat template begin alike."""
    e = Watched(slot_tokens=1024)
    e.run(ask(CODEC.encode_prompt(HELLO)))
    other = CODEC.encode_prompt([{"role": "user", "content": "And Italy?"}])
    assert e.engine.prefixes.holder(CODEC.encode_prompt(HELLO), "") is not None
    assert e.engine.prefixes.holder(other, "") is None


def test_a_turn_that_does_not_fit_is_left_out():
    prompt = CODEC.encode_prompt(HELLO)
    e = Watched(slot_tokens=len(prompt) + LIMITS.max_tokens // 2)
    (result,), _ = e.run(chat(HELLO, limits=LIMITS, parallel=False))
    assert result.finish_reason
    assert not e.engine.turns.pending


def test_the_tail_of_an_answer_is_what_the_template_puts_behind_it():
    tail = turn_tail(CODEC)
    answer, question = "Paris.", "And Rome?"
    begun = [*CODEC.encode_prompt(HELLO), *CODEC.encode_text(answer), *tail]
    assert CODEC.encode_prompt(answered(HELLO, answer, question))[: len(begun)] == begun


@pytest.mark.skipif(not kernels.ready(), reason="the kernels are not built")
def test_with_kernels_a_match_is_cut_nowhere():
    packed = tiny("qwen3", packed=True)
    e = Engine(packed, EngineConfig(num_slots=2, slot_tokens=256, prefill_chunk=16, trace_forward=False))
    base = list(range(40, 100))
    first = e.generate(ask(base, parallel=False))
    again = e.generate(ask([*base[:53], 7, 8, 9], parallel=False))
    cold = Engine(
        packed, EngineConfig(num_slots=2, slot_tokens=256, trace_forward=False, reuse_prefixes=False)
    )
    assert first.response_ids
    assert again.cached_tokens == 53
    assert again.response_ids == cold.generate(ask([*base[:53], 7, 8, 9], parallel=False)).response_ids
