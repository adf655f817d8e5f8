"""Where threads go: the decisions, for any loads."""

from hypothesis import given
from hypothesis import strategies as st

from pasta.placement import POLICIES, Home, LaneCosts, PrefixTable, choose_home

names = st.sampled_from(["a", "b", "c", "d"])
loads = st.dictionaries(names, st.integers(0, 40), min_size=1)
seconds = st.floats(0, 1)
costs = st.builds(LaneCosts, seconds, st.integers(1, 64), seconds, seconds)
homes = st.builds(Home, st.integers(1, 64), costs)
sizes = st.integers(1, 2000)


@given(homes, sizes, sizes)
def test_local_keeps_every_chunk_and_spread_gives_every_one_away(home, estimate, visible):
    assert not POLICIES["local"].leaves(home, estimate, visible)
    assert POLICIES["spread"].leaves(home, estimate, visible)


@given(names, loads)
def test_spread_takes_the_least_loaded_replica_and_of_equals_the_home(home, loads):
    chosen = POLICIES["spread"].choose(home, loads)
    lanes = {home: 0, **loads}
    assert lanes[chosen] == min(lanes.values())
    assert chosen == home or lanes[home] > lanes[chosen]


@given(homes, sizes, sizes)
def test_auto_keeps_chunks_up_to_the_knee(home, estimate, visible):
    if home.lanes <= home.costs.knee:
        assert not POLICIES["auto"].leaves(home, estimate, visible)


@given(homes, sizes, sizes, st.integers(1, 500))
def test_what_auto_gives_away_it_would_give_away_if_it_saw_less(home, estimate, visible, less):
    if POLICIES["auto"].leaves(home, estimate, visible):
        assert POLICIES["auto"].leaves(home, estimate, max(1, visible - less))


def test_auto_gives_a_chunk_away_only_if_it_is_long_enough_to_pay_for_its_prefill():
    home = Home(lanes=9, costs=LaneCosts(step_s=0.01, knee=8, lane_s=0.001, prefill_s=0.0005))
    assert not POLICIES["auto"].leaves(home, estimate=10, visible=1000)
    assert POLICIES["auto"].leaves(home, estimate=200, visible=1000)


def test_the_knee_is_the_last_number_of_lanes_before_a_step_that_costs_much_more():
    costs = LaneCosts.of({1: 0.01, 2: 0.012, 4: 0.015, 8: 0.016, 16: 0.012}, prefill_s=0.0005)
    assert costs == LaneCosts(step_s=0.01, knee=4, lane_s=(0.012 - 0.01) / 15, prefill_s=0.0005)


@given(loads, st.none() | names, st.integers(0, 10))
def test_a_home_is_never_much_busier_than_the_least_loaded_replica(loads, known, slack):
    home = choose_home(loads, known, slack)
    assert loads[home] <= min(loads.values()) + (slack if home == known else 0)
    if known in loads and loads[known] <= min(loads.values()) + slack:
        assert home == known


tokens = st.lists(st.integers(0, 3), max_size=40)


@given(tokens, tokens, tokens)
def test_a_prompt_is_known_by_its_longest_prefix_in_whole_blocks(shared, one, other):
    table = PrefixTable(block=4)
    table.learn([*shared, *one], "a")
    found = table.longest([*shared, *other])
    common = 0
    for left, right in zip([*shared, *one], [*shared, *other], strict=False):
        if left != right:
            break
        common += 1
    assert found == ("a" if common >= 4 else None)


def test_what_was_used_last_is_kept():
    table = PrefixTable(block=1, size=2)
    for prompt in ([1], [2], [1], [3]):
        table.learn(prompt, str(prompt[0]))
    assert [table.longest([n]) for n in (1, 2, 3)] == ["1", None, "3"]
