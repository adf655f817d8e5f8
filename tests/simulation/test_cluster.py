"""What holds in every simulation, whatever its answers, sizes and loads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.lang import Chunk, Document
from pasta.simulation.load import Poisson, Replayed, Users
from pasta.simulation.replica import Piece, Replica, ReplicaSizes
from pasta.simulation.slots import LiveSlot, Schedule
from tests.support.simulations import Flat, cluster, drinks, scripts_of, some_scripts, words

SCRIPTS = some_scripts()
chosen = st.lists(st.sampled_from(SCRIPTS), min_size=1, max_size=12)
sizes = st.builds(
    ReplicaSizes,
    num_slots=st.integers(1, 5),
    slot_tokens=st.just(4096),
    prefill_chunk=st.integers(1, 12),
    padded=st.booleans(),
)
costs = st.builds(
    Flat,
    step_s=st.floats(0.01, 2),
    lane_s=st.floats(0, 0.5),
    token_s=st.floats(0, 0.1),
    key_s=st.floats(0, 0.01),
    among_s=st.none() | st.floats(0.0005, 0.005),
)
gaps = st.lists(st.floats(0, 20), min_size=12, max_size=12)
quick = settings(max_examples=40, deadline=None)


def ways(chosen, parallel):
    return [both.parallel if parallel else both.sequential for both in chosen]


def times(gaps, count):
    at = [sum(gaps[: n + 1]) for n in range(count)]
    return Replayed(at)


@quick
@given(chosen, st.booleans(), sizes, costs, gaps, st.integers(1, 3))
def test_schedules_and_interpreters_give_the_same_simulation(chosen, parallel, sizes, costs, gaps, replicas):
    scripts = ways(chosen, parallel)

    def run(live):
        arrivals = times(gaps, len(scripts))
        made = cluster(scripts, arrivals, costs=costs, sizes=sizes, replicas=replicas, live=live)
        run = made.run(len(scripts))
        lives = [(s.number, s.queue_s, s.first_token_s, s.end_s, s.steps) for s in run.served]
        return lives, [replica.work for replica in made.replicas], run.last

    assert run(live=True) == run(live=False)


@quick
@given(
    chosen,
    sizes,
    costs,
    gaps,
    st.integers(1, 3),
    st.sampled_from(["local", "spread", "auto"]),
    st.floats(0, 3),
)
def test_every_token_is_decoded_once_wherever_it_is(chosen, sizes, costs, gaps, replicas, placement, hop_s):
    scripts = ways(chosen, parallel=True)
    made = cluster(
        scripts,
        times(gaps, len(scripts)),
        costs=costs,
        sizes=sizes,
        placement=placement,
        replicas=replicas,
        hop_s=hop_s,
    )
    run = made.run(len(scripts))
    assert len(run.served) == len(scripts)
    assert sum(r.work.emitted for r in made.replicas) == sum(
        sum(map(len, script.tokens.values())) for script in scripts
    )
    assert all(r.load == len(r._numbers) == len(r._waiting) == 0 for r in made.replicas)


@quick
@given(chosen, st.booleans(), sizes, costs, gaps, st.integers(1, 3))
def test_nobody_waits_for_less_than_nothing_or_is_done_before_the_critical_path(
    chosen, parallel, sizes, costs, gaps, replicas
):
    scripts = ways(chosen, parallel)
    run = cluster(scripts, times(gaps, len(scripts)), costs=costs, sizes=sizes, replicas=replicas).run(
        len(scripts)
    )
    for served in run.served:
        assert served.queue_s >= 0
        assert served.arrival_s + served.queue_s < served.first_token_s <= served.end_s
        assert served.steps == len(Schedule.of(served.script).lanes)
        assert served.total_s >= (costs.among_s or costs.step_s) * served.steps - 1e-9


@pytest.mark.slow
@quick
@given(chosen, sizes, st.integers(1, 3))
def test_slots_and_lanes_keep_to_their_limits(chosen, sizes, replicas):
    scripts = ways(chosen, parallel=True)
    made = cluster(scripts, sizes=sizes, replicas=replicas)
    most = max(max(Schedule.of(script).rows, default=1) for script in scripts)
    seen = []

    def watched(replica):
        begin = replica.begin

        def begin_and_look(now):
            end = begin(now)
            seen.append((len(replica._numbers), len(replica._waiting), replica.num_lanes))
            return end

        replica.begin = begin_and_look

    for replica in made.replicas:
        watched(replica)
    run = made.run(len(scripts))
    lanes = max(max(Schedule.of(script).lanes) for script in scripts)
    assert all(active <= sizes.num_slots for active, _, _ in seen)
    assert all(active == sizes.num_slots or not waiting for active, waiting, _ in seen)
    assert all(count <= active * lanes for active, _, count in seen)
    requests, rows, _ = run.largest
    assert requests <= sizes.num_slots
    assert rows <= most


@quick
@given(st.integers(1, 12), st.booleans(), sizes, costs, st.integers(1, 4))
def test_more_replicas_never_take_longer_for_the_same_answers(count, parallel, sizes, costs, replicas):
    scripts = ways(scripts_of([drinks()]) * count, parallel)

    def ends(replicas):
        return cluster(scripts, costs=costs, sizes=sizes, replicas=replicas).run(count).last.now

    assert ends(replicas + 1) <= ends(replicas) + 1e-6


@pytest.mark.slow
@quick
@given(chosen, sizes, costs, st.integers(0, 9))
def test_a_seed_decides_everything(chosen, sizes, costs, seed):
    def run():
        arrivals = Poisson(0.5, seed)
        made = cluster(ways(chosen, True), arrivals, costs=costs, sizes=sizes, placement="auto", replicas=2)
        return [(s.number, s.arrival_s, s.end_s) for s in made.run(20, 5).served]

    assert run() == run()


@pytest.mark.parametrize("placement", ["local", "spread", "auto"])
def test_littles_law_holds(placement):
    """Requests present on average = rate of arrivals × time in the system, exactly, once the system has emptied."""
    scripts = ways(SCRIPTS, parallel=True)
    made = cluster(scripts, times([3.0] * 40, 40), placement=placement, replicas=2, hop_s=0.5)
    run = made.run(len(scripts))
    spent = sum(served.total_s for served in run.served)
    assert run.last.present_s == pytest.approx(spent)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.8])
def test_one_slot_and_equal_answers_are_an_m_d_1_queue(load):
    """Pollaczek and Khinchine: with service time D and load ρ the mean wait is ρ D / (2 (1 − ρ))."""
    (both,) = scripts_of([drinks()])
    alone = cluster([both.parallel], sizes=ReplicaSizes(1, 1024, 64)).run(1).served[0].total_s
    made = cluster([both.parallel], Poisson(load / alone, 3), sizes=ReplicaSizes(1, 1024, 64))
    run = made.run(20_000, 500)
    wait = sum(served.total_s - alone for served in run.served) / len(run.served)
    assert wait == pytest.approx(load * alone / (2 * (1 - load)), rel=0.08)


def test_users_who_think_are_as_many_as_there_are():
    """In a closed loop, users = throughput × (time in the system + thinking)."""
    scripts = ways(SCRIPTS, parallel=True)
    arrivals = Users(12, 50.0, seed=1)
    run = cluster(scripts, arrivals, replicas=2).run(3000, 300)
    begun, ended = run.begun, run.ended
    rate = (ended.ended - begun.ended) / (ended.now - begun.now)
    total_s = sum(served.total_s for served in run.served) / len(run.served)
    assert rate * (total_s + 50.0) == pytest.approx(12, rel=0.05)


def test_a_replica_that_is_idle_begins_at_once_and_one_that_steps_at_its_end():
    (both,) = scripts_of([drinks()])
    scripts = [both.sequential] * 2
    run = cluster(scripts, Replayed([0.0, 2.5]), sizes=ReplicaSizes(4, 1024, 64), request_s=0.25).run(2)
    first, second = run.served
    assert first.first_token_s == 1.25
    # It comes in at 2.75, in the step that ends at 3.25; the next one holds its prefill and the other's lane.
    assert second.queue_s == pytest.approx(0.75)
    assert second.first_token_s == pytest.approx(3.25 + 2.0)


def test_chunks_elsewhere_pay_for_messages_and_prefill():
    (both,) = scripts_of([drinks(30, 30)])
    local = cluster([both.parallel], placement="local", replicas=2).run(1).served[0]
    spread = cluster([both.parallel], placement="spread", replicas=2).run(1).served[0]
    slow = cluster([both.parallel], placement="spread", replicas=2, hop_s=5.0).run(1).served[0]
    assert local.spills == 0
    assert spread.spills >= 1
    assert local.total_s < spread.total_s < slow.total_s


def test_spreading_pays_where_lanes_are_dear():
    (both,) = scripts_of([drinks(200, 200)])
    dear = Flat(step_s=0.1, lane_s=1.0)
    local = cluster([both.parallel], costs=dear, placement="local", replicas=3).run(1).served[0]
    auto = cluster([both.parallel], costs=dear, placement="auto", replicas=3).run(1).served[0]
    assert auto.spills >= 1
    assert auto.total_s < local.total_s


def test_auto_stays_at_home_where_lanes_are_free():
    (both,) = scripts_of([drinks(200, 200)])
    auto = cluster([both.parallel], costs=Flat(), placement="auto", replicas=3).run(1).served[0]
    assert auto.spills == 0


def test_a_chunk_that_finds_no_slot_is_decoded_at_home():
    (both,) = scripts_of([drinks(30, 30)])
    scripts = [both.parallel, both.sequential]  # one slot each: the other replica's is taken
    run = cluster(scripts, sizes=ReplicaSizes(1, 1024, 64), placement="spread", replicas=2).run(2)
    assert run.served[0].returns == 1
    assert run.served[0].spills == 0
    assert run.served[0].end_s > 0


def test_chunks_elsewhere_jump_forward_only_if_their_engine_does():
    inner = Chunk("green tea", 10, (words(3),))
    (both,) = scripts_of([Document((words(3), Chunk("tea", 30, (words(3), inner, words(3))), words(4)))])

    def steps(*, jump_forward):
        sizes = ReplicaSizes(4, 1024, 64, jump_forward=jump_forward)
        made = cluster([both.parallel], sizes=sizes, placement="spread", replicas=2)
        assert made.run(1).served[0].spills > 0
        return [replica.work.steps for replica in made.replicas]

    slow, fast = steps(jump_forward=False), steps(jump_forward=True)
    assert all(plain > jumped for plain, jumped in zip(slow, fast, strict=True))


def test_an_answer_that_takes_a_chunk_back_does_not_wait_for_the_prompts_of_others():
    """As in the engine (``Engine._pick_bulk``)."""
    (both,) = scripts_of([drinks(30, 30)])
    (long,) = scripts_of([drinks()], prompt_tokens=60)
    replica, slots = Replica(ReplicaSizes(4, 1024, 4), Flat()), []

    def begin():
        slots.append(LiveSlot(both.parallel, lambda estimate: estimate == 0))
        return slots[0]

    begun, left = Piece(begin), []
    replica.submit(begun)
    while not left:
        replica.begin(0.0)
        left = replica.finish(0.0)[1]
    for _ in range(3):
        replica.submit(Piece(lambda: LiveSlot(long.sequential)))
    replica.begin(0.0)
    replica.finish(0.0)
    replica.adopt(begun, left[0][1].path)
    emitted = slots[0].emitted
    replica.begin(0.0)
    replica.finish(0.0)
    assert slots[0].emitted > emitted
