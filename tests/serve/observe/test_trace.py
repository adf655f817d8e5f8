"""The trace of an answer says what its threads did, and when; Perfetto's format is kept."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.data.word_tokenizer import WordTokenizer
from pasta.interpreter import Interpreter, Limits
from pasta.lang import Codec, parse, to_text
from serve.observe.trace import PlacementEvent, chrome_trace, sync_wait_s, syncs, way
from tests.support.documents import random_document
from tests.support.tokenizers import codec as byte_codec

STEP_S = 0.01
TWO = (
    'a b<promise topic="one" tokens="10"/><async> c d e f g h i j k l m n</async>'
    '<promise topic="two" tokens="10"/><async> g</async><sync/> h'
)


def decode(text, codec=None, late=0.0):
    """The interpreter of an answer of which every live thread decodes a token a step; chunks come ``late``."""
    codec = codec or Codec(WordTokenizer())
    ids = [*codec.encode(parse(text)), codec.eos_id]
    wide = Limits(max_depth=9, max_tokens=100_000, max_chunk_tokens=100_000, max_threads=1000)
    whole = Interpreter(codec.grammar, wide, (), strict=False)
    whole.drive(0, ids)
    scripts = {thread.path: thread.tokens for thread in whole.threads}
    it, now = Interpreter(codec.grammar, wide, (), strict=False), 0.5
    while not it.done:
        now += STEP_S
        for number in it.live_threads:
            thread = it.threads[number]
            it.emit(number, scripts[thread.path][len(thread.tokens)], now + (late if thread.path else 0.0))
    return it, codec


def traced(text, codec=None, late=0.0, **options):
    it, codec = decode(text, codec, late)
    topics = [codec.decode_text(thread.topic_ids) for thread in it.threads]
    times = {"queue_s": 0.1, "ttft_s": 0.51}
    made = chrome_trace(it.trace(), topics, codec.grammar.control.sync, request="r-1", **{**times, **options})
    return json.loads(json.dumps(made)), it, codec


def events(made, ph, name=None):
    return [e for e in made["traceEvents"] if e["ph"] == ph and (name is None or e["name"] == name)]


WAY = (("body", 100.0), ("encoding", 100.2), ("to the Decoder", 100.5))


def test_a_request_s_way_through_the_service_is_a_track_without_gaps():
    made, _, _ = traced(TWO, marks=way(WAY, submitted_at=101.0, total_s=2.0))
    slices = [e for e in events(made, "X") if e["pid"] == 2]
    assert [e["name"] for e in slices] == [
        "body",
        "encoding",
        "to the Decoder",
        "decoding",
        "from the Decoder",
    ]
    assert [e["ts"] for e in slices] == [0.0, 0.2e6, 0.5e6, 1e6, 3e6]
    assert all(one["ts"] + one["dur"] == next_["ts"] for one, next_ in itertools.pairwise(slices))
    assert [e["args"]["name"] for e in events(made, "M", "process_name")] == ["answer r-1", "service"]


def test_with_its_way_the_threads_times_begin_with_the_request():
    made, _, _ = traced(TWO, marks=way(WAY, submitted_at=101.0, total_s=2.0))
    (queue,) = events(made, "X", "queue")
    assert (queue["ts"], queue["dur"]) == (1e6, 0.1e6)


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=6), st.floats(0, 1e9), st.floats(0, 1e3))
def test_no_stage_begins_before_the_one_before_it_whatever_the_nodes_clocks_say(times, submitted_at, total_s):
    found = [at for _, at in way([(str(n), at) for n, at in enumerate(times)], submitted_at, total_s)]
    assert found == sorted(found)


def test_every_thread_has_a_track_named_by_its_topic_in_reading_order():
    nested = 'x<promise topic="out" tokens="20"/><async> c<promise topic="in" tokens="10"/><async> d</async></async> e'
    made, _, _ = traced(nested + '<promise topic="last" tokens="10"/><async> g</async>')
    names = {e["tid"]: e["args"]["name"] for e in events(made, "M", "thread_name")}
    assert [names[row] for row in sorted(names)] == ["main thread", "out", "in", "last"]
    assert [e["args"]["name"] for e in events(made, "M", "process_name")] == ["answer r-1"]


def test_the_main_thread_begins_with_its_queue_and_its_prefill():
    made, _, _ = traced("a b")
    (queue,), (prefill,) = events(made, "X", "queue"), events(made, "X", "prefill")
    assert (queue["ts"], queue["dur"]) == (0.0, 100_000.0)
    assert (prefill["ts"], prefill["dur"]) == (100_000.0, 410_000.0)


def test_a_thread_decodes_all_of_its_tokens_between_its_waits():
    made, it, _ = traced(TWO)
    rows = {e["tid"]: 0 for e in events(made, "X", "decode")}
    for each in events(made, "X", "decode"):
        rows[each["tid"]] += each["args"]["tokens"]
    assert rows == {number: len(thread.tokens) for number, thread in enumerate(it.threads)}


def test_a_sync_waits_until_its_last_chunk_has_ended():
    made, it, codec = traced(TWO)
    (wait,) = events(made, "X", "sync wait")
    main, one, _ = it.threads
    at = main.tokens.index(codec.grammar.control.sync)
    assert wait["ts"] == pytest.approx(main.times[at] * 1e6)
    assert wait["ts"] + wait["dur"] == pytest.approx(one.times[-1] * 1e6)
    assert sync_wait_s(it.trace(), codec.grammar.control.sync) == pytest.approx(wait["dur"] / 1e6)


def test_a_sync_that_has_nothing_to_wait_for_is_no_wait():
    made, it, codec = traced("a<sync/> b")
    assert events(made, "X", "sync wait") == []
    assert syncs(it.trace(), it.trace().threads[0], codec.grammar.control.sync) == []


def test_a_chunk_from_elsewhere_that_comes_late_is_waited_for_though_its_steps_are_few():
    short = 'a<promise topic="t" tokens="10"/><async> c</async> d e f g h i j k l m n o<sync/> p'
    assert sync_wait_s(decode(short)[0].trace(), Codec(WordTokenizer()).grammar.control.sync) == 0.0
    it, codec = decode(short, late=0.4)
    assert sync_wait_s(it.trace(), codec.grammar.control.sync) > 0.1


def test_chunks_without_a_sync_are_waited_for_at_the_end():
    made, it, _ = traced('a<promise topic="t" tokens="10"/><async> c d e f</async>')
    (wait,) = events(made, "X", "sync wait")
    assert wait["ts"] + wait["dur"] == pytest.approx(it.threads[1].times[-1] * 1e6)


def test_arrows_lead_from_forks_to_chunks_and_back_to_the_join():
    made, it, _ = traced(TWO)
    for name, count in (("fork", 2), ("join", 2)):
        starts, ends = events(made, "s", name), events(made, "f", name)
        assert [e["id"] for e in starts] == [e["id"] for e in ends]
        assert len({e["id"] for e in starts}) == count
        assert all(a["ts"] <= b["ts"] for a, b in zip(starts, ends, strict=True))
    assert (
        {e["tid"] for e in events(made, "s", "fork")} == {0} == {e["tid"] for e in events(made, "f", "join")}
    )
    (join,) = events(made, "i", "join")
    assert join["args"]["threads"] == [1, 2]
    assert [e["args"]["estimate"] for e in events(made, "i", "fork")] == [t.estimate for t in it.threads[1:]]


def test_what_placement_did_is_marked_on_the_thread_it_was_done_with():
    placed = [
        PlacementEvent((1,), "spill", 0.6, "decoder-2"),
        PlacementEvent((), "redispatch", 0.7),
        PlacementEvent((9, 9), "spill", 0.8),
    ]
    made, _, _ = traced(TWO, placement_events=placed)
    (spill,), (again,) = events(made, "i", "spill"), events(made, "i", "redispatch")
    assert (spill["tid"], spill["args"]) == (2, {"replica": "decoder-2"})
    assert (again["tid"], again["ts"]) == (0, 700_000.0)


def lanes(made):
    return [(e["ts"], e["args"]["lanes"]) for e in events(made, "C", "lanes")]


def test_the_lanes_are_the_threads_that_decode_at_a_time():
    made, it, codec = traced(TWO)
    main, one, two = it.threads
    sync = main.times[main.tokens.index(codec.grammar.control.sync)] * 1e6
    first, second = (e["ts"] for e in events(made, "i", "fork"))
    # The main thread goes on when the last chunk has ended: a lane for a lane.
    changes = [(main.times[0] * 1e6, 1), (first, 2), (second, 3)]
    changes += [(sync, 2), (two.times[-1] * 1e6, 1), (main.times[-1] * 1e6, 0)]
    assert [count for _, count in lanes(made)] == [count for _, count in changes]
    assert [time for time, _ in lanes(made)] == pytest.approx([time for time, _ in changes])
    assert sync < one.times[-1] * 1e6


def test_a_chunk_that_is_decoded_late_elsewhere_is_a_lane_when_it_is_decoded():
    made, it, _ = traced('a<promise topic="t" tokens="10"/><async> c d e f</async><sync/> b', late=0.4)
    during = (it.threads[1].times[0] + it.threads[1].times[-1]) / 2 * 1e6
    assert [count for time, count in lanes(made) if time <= during][-1] == 1


@settings(deadline=None)
@given(st.integers(0, 300))
def test_any_answer_makes_a_trace_that_opens(seed):
    """What Perfetto asks of each kind of event: a place, a time, a duration that is not negative, matched arrows; and
    of a track's slices that they do not overlap."""
    codec = byte_codec()
    made, it, _ = traced(to_text(random_document(seed)), codec)
    for event in made["traceEvents"]:
        assert event["pid"] == 1
        assert event["ph"] in "MXisfC"
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
    tracks = {}
    for slice_ in events(made, "X"):
        tracks.setdefault(slice_["tid"], []).append((slice_["ts"], slice_["ts"] + slice_["dur"]))
    for track in tracks.values():
        track.sort()
        assert all(until <= since + 1e-3 for (_, until), (since, _) in itertools.pairwise(track))
    starts, ends = ([(e["name"], e["id"]) for e in events(made, ph)] for ph in "sf")
    assert sorted(starts) == sorted(ends)
    assert len(starts) == len(set(starts))
    decoded = sum(e["args"]["tokens"] for e in events(made, "X", "decode"))
    assert decoded == sum(len(thread.tokens) for thread in it.threads)


def test_an_answer_that_was_cut_in_the_middle_makes_a_trace_too():
    codec = Codec(WordTokenizer())
    ids = codec.encode(parse('a<promise topic="t" tokens="10"/><async> c</async> b<sync/> d'))
    it = Interpreter(codec.grammar, Limits(), (), strict=False)
    for token in ids[: ids.index(codec.grammar.control.async_open)]:
        it.emit(0, token, 0.1)
    topics = ["", "t"]
    made = chrome_trace(it.trace(), topics, codec.grammar.control.sync, request="r", queue_s=0, ttft_s=0.1)
    assert len(events(made, "M", "thread_name")) == 2
