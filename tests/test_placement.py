"""Where threads go: the decisions, for any loads."""

from hypothesis import given
from hypothesis import strategies as st

from pasta.placement import POLICIES, Home, LaneCosts, choose_home, matched_tokens, prefix_digests

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


@given(loads, st.dictionaries(names, st.integers(0, 2000)))
def test_a_home_is_busier_than_another_replica_only_as_far_as_what_it_holds_is_worth(loads, matched):
    home = choose_home(loads, matched)
    for name, lanes in loads.items():
        assert loads[home] <= lanes + max(0, matched.get(home, 0) - matched.get(name, 0)) / 64


@given(loads)
def test_where_nobody_holds_the_prompt_the_home_is_the_least_loaded(loads):
    assert loads[choose_home(loads, {})] == min(loads.values())


def test_of_equally_busy_replicas_the_home_is_the_one_that_holds_most_of_the_prompt():
    assert choose_home({"a": 3, "b": 3, "c": 3}, {"b": 64, "c": 128}) == "c"
    assert choose_home({"a": 0, "b": 3}, {"b": 64}) == "a"


tokens = st.lists(st.integers(0, 3), max_size=40)


@given(tokens, tokens, tokens)
def test_a_prompt_is_recognised_by_its_longest_beginning_in_whole_chunks_or_by_all_of_it(shared, one, other):
    held = {name for _, name in prefix_digests([*shared, *one], 4, "salt")}
    found = matched_tokens(prefix_digests([*shared, *other], 4, "salt"), held)
    common = 0
    for left, right in zip([*shared, *one], [*shared, *other], strict=False):
        if left != right:
            break
        common += 1
    whole = one == other
    assert found == (len([*shared, *one]) if whole else common // 4 * 4)
    assert matched_tokens(prefix_digests([*shared, *other], 4, "another"), held) == 0
