"""Server-sent events are the same however the bytes are cut."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.benchmark.load.sse import EventReader

STREAM = (
    ': a comment\n\nevent: x\ndata: {"a": "é\u2028\x85 b"}\n\ndata:two\r\ndata:  lines\r\n\r\nid: 3\n\n'
    "data: [DONE]\n\ndata: not yet whole"
).encode()
EVENTS = ['{"a": "é\u2028\x85 b"}', "two\n lines", "[DONE]"]


@settings(deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_do_not_depend_on_how_the_stream_is_cut(places):
    cuts = [0, *sorted(places), len(STREAM)]
    reader = EventReader()
    read = [event for a, b in itertools.pairwise(cuts) for event in reader.feed(STREAM[a:b])]
    assert read == EVENTS


def test_an_event_is_given_out_as_soon_as_its_empty_line_is_there():
    reader = EventReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\n") == ["a"]
