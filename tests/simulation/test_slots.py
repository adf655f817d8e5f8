"""A slot feeds and emits what the interpreter says, alone or in company, here or elsewhere."""

import pytest

from pasta.interpreter import Interpreter
from pasta.simulation.script import UNBOUNDED
from pasta.simulation.slots import LiveSlot, Schedule
from tests.support.simulations import drinks, scripts_of, some_scripts, words

SCRIPTS = some_scripts()


def drain(slot):
    """Run a slot to its end in a replica of its own; the chunks that left."""
    left = []
    while not slot.done:
        slot.take(slot.pending)
        left += slot.emit()
    return left


@pytest.mark.parametrize("number", range(0, len(SCRIPTS), 3))
def test_an_answer_alone_takes_its_critical_path(number):
    script = SCRIPTS[number].parallel
    slot = LiveSlot(script)
    drain(slot)
    schedule = Schedule.of(script, jump_forward=False)
    assert len(schedule.lanes) == schedule.critical_path == slot.interpreter.critical_path


@pytest.mark.parametrize("number", range(0, len(SCRIPTS), 3))
def test_forced_tokens_take_no_step(number):
    script = SCRIPTS[number].parallel
    plain, jumped = Schedule.of(script, jump_forward=False), Schedule.of(script)
    assert sum(jumped.emitted) == sum(plain.emitted)
    assert jumped.critical_path == plain.critical_path
    promises = len(script.tokens) - 1
    assert len(jumped.lanes) <= len(plain.lanes)
    if promises and not any(len(path) > 1 for path in script.tokens):
        assert len(jumped.lanes) < len(plain.lanes)


@pytest.mark.parametrize("number", range(0, len(SCRIPTS), 3))
def test_decoding_sequentially_takes_as_many_steps_as_there_are_tokens(number):
    script = SCRIPTS[number].sequential
    schedule = Schedule.of(script)
    assert schedule.lanes == (1,) * script.plain_tokens
    assert schedule.rows == (1,) * (script.plain_tokens - 1)


@pytest.mark.parametrize("number", range(0, len(SCRIPTS), 3))
def test_every_token_is_decoded_once_and_fed_once(number):
    script = SCRIPTS[number].parallel
    slot = LiveSlot(script)
    drain(slot)
    assert {t.path: tuple(t.tokens) for t in slot.interpreter.threads} == script.tokens
    assert slot.emitted == sum(map(len, script.tokens.values()))
    # Each chunk's <async> is fed, not decoded. What a last step emits, and the answer's end, is not fed any more.
    ends = Schedule.of(script).lanes[-1]
    assert script.prompt_tokens + script.num_tokens - ends - 1 <= slot.held
    assert slot.held <= script.prompt_tokens + script.num_tokens - 1


def test_a_fork_is_a_lane_from_the_next_step_on_and_a_sync_waits():
    (both,) = scripts_of([drinks(first=3, second=9)])
    schedule = Schedule.of(both.parallel, jump_forward=False)
    # Three words and a promise of five tokens, twice; the first chunk's <async> is fed with the promise's end.
    assert schedule.lanes[:8] == (1,) * 8
    assert schedule.lanes[8:13] == (2, 2, 2, 2, 1)
    # The second chunk's ten tokens, beside which the main thread emits only its sync.
    assert schedule.lanes[13:23] == (2, *(1,) * 9)
    assert schedule.lanes[23:] == (1,) * 5
    assert schedule.rows[7] == 2


@pytest.mark.parametrize("number", range(0, len(SCRIPTS), 5))
def test_a_schedule_is_what_a_live_slot_does_step_by_step(number):
    script = SCRIPTS[number].parallel
    schedule, slot = Schedule.of(script), LiveSlot(script)
    rows, lanes, emitted = [slot.take(slot.pending)], [], []
    while not slot.done:
        before = slot.emitted
        lanes.append(slot.lanes)
        slot.emit()
        emitted.append(slot.emitted - before)
        rows.append(slot.take(slot.pending))
    assert lanes == list(schedule.lanes)
    assert emitted == list(schedule.emitted)
    assert rows[:-1] == [schedule.prompt_tokens, *schedule.rows]


@pytest.mark.parametrize("number", range(0, len(SCRIPTS), 3))
def test_chunks_decoded_elsewhere_come_back_to_the_same_answer(number):
    """Every chunk leaves, those inside of chunks too, and is taken in when its parent has nothing else to do."""
    script = SCRIPTS[number].parallel

    def run(slot):
        away = []
        while not slot.done:
            if not slot.pending:
                chunk = away.pop(0)
                elsewhere = LiveSlot(script, lambda estimate: False, chunk.snapshot)
                run(elsewhere)
                slot.absorb(chunk.path, elsewhere.interpreter.response_ids())
            slot.take(slot.pending)
            away += slot.emit()

    home = LiveSlot(script, lambda estimate: False)
    run(home)
    whole = Interpreter(script.grammar, UNBOUNDED, [0] * script.prompt_tokens, strict=False)
    whole.drive(0, home.interpreter.response_ids())
    assert {t.path: tuple(t.tokens) for t in home.interpreter.threads} == script.tokens
    assert {t.path: t.positions for t in home.interpreter.threads} == {
        t.path: t.positions for t in whole.threads
    }


def test_a_chunk_that_is_given_back_is_decoded_at_home():
    (both,) = scripts_of([drinks()])
    slot = LiveSlot(both.parallel, lambda estimate: False)
    while not slot.done:
        slot.take(slot.pending)
        for chunk in slot.emit():
            lanes = slot.lanes
            slot.adopt(chunk.path)
            assert slot.lanes == lanes + 1
    assert {t.path: tuple(t.tokens) for t in slot.interpreter.threads} == both.parallel.tokens


def test_an_answer_may_be_its_end_alone():
    (both,) = scripts_of([type(drinks())((words(0),))])
    schedule = Schedule.of(both.parallel)
    assert (schedule.lanes, schedule.rows) == ((1,), ())


def test_steps_run_together_up_to_the_first_token_that_is_no_text_of_answer_or_topic():
    (both,) = scripts_of([drinks(first=3, second=9)])
    plain = Schedule.of(both.sequential)
    assert plain.together == tuple(range(len(plain.rows), 0, -1))
    schedule = Schedule.of(both.parallel, jump_forward=False)
    # Three words, whose last step emits the promise's beginning; its next token; a word of topic and the estimate; the
    # promise's end, and the second one's beginning and next token; its topic, while the first chunk writes.
    assert schedule.together[:11] == (3, 2, 1, 1, 2, 1, 1, 1, 1, 2, 1)


@pytest.mark.parametrize("number", range(0, len(SCRIPTS), 5))
def test_in_steps_together_each_feeds_what_it_would_alone(number):
    """Within them a thread emits one token a step, and none forks, waits or ends."""
    schedule = Schedule.of(SCRIPTS[number].parallel)
    for at, count in enumerate(schedule.together):
        assert schedule.together[at : at + count] == tuple(range(count, 0, -1))
        # What the first may feed besides: the end of a promise or of a chunk, a chunk's beginning.
        (lanes,) = set(schedule.lanes[at + 1 : at + 1 + count])
        assert schedule.rows[at] >= lanes
        assert set(schedule.rows[at + 1 : at + count]) <= {lanes}
