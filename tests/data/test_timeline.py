import re

import pytest

from pasta.data.measures import measure_document
from pasta.data.timeline import TimelineRow, render_rows, render_timeline, timeline_rows, to_ascii
from pasta.data.word_tokenizer import WordTokenizer
from pasta.lang import Codec, parse

TWO = (
    'a b<promise topic="one" tokens="10"/><async> c d e f</async><promise topic="two" tokens="10"/><async> g</async>'
    "<sync/> h"
)


def counts_of(text):
    return measure_document(parse(text), Codec(WordTokenizer()))


def test_one_column_is_one_step_where_there_is_room():
    counts = counts_of(TWO)
    main, one, two = render_timeline(counts.trace, 100, topics=counts.topics).splitlines()[1:]
    # a, b, and a promise of five tokens: the first fork is at step 7, the second five steps later, the sync at 13,
    # and its wait ends with step 14.
    assert main.split()[1] == "━━━━━━┳━━━━┳━◆━━"
    assert main.index("┳") + 1 == one.index("╰")
    assert main.rindex("┳") + 1 == two.index("╰")
    assert one.count("━") == 3  # four words and the closing tag, of which the ends are drawn as such


def test_a_join_that_waits_for_nothing_is_marked_when_the_sync_is_known():
    counts = counts_of("a<sync/> b")
    assert "◆" not in render_timeline(counts.trace)
    assert "◆" in render_timeline(counts.trace, sync_id=counts.sync_id)


def test_lanes_stand_in_reading_order_with_their_figures():
    nested = 'x<promise topic="one" tokens="20"/><async> c<promise topic="in" tokens="10"/><async> d</async></async> e'
    lanes = timeline_rows(counts_of(nested + '<promise topic="two" tokens="10"/><async> g</async>').trace)
    assert [lane.depth for lane in lanes] == [0, 1, 2, 1]
    assert lanes[2].start == lanes[1].forks[0]
    assert lanes[0].forks == (lanes[1].start, lanes[3].start)


def test_an_axis_of_seconds():
    axis, row = render_rows([TimelineRow("main", 0.0, 2.5, 5)], 60, unit="seconds").splitlines()
    assert "│0 s" in axis
    assert row.endswith("5 tokens")


@pytest.mark.parametrize("width", [1, 40, 57, 100, 300])
def test_a_drawing_keeps_to_its_width(width):
    counts = counts_of(TWO.replace(" c d e f", " word" * 500))
    for line in render_timeline(counts.trace, width, topics=counts.topics).splitlines():
        assert len(line) <= max(width, 40)


def test_labels_are_cut_and_cleaned_for_the_terminal():
    lanes = [TimelineRow("\033[2J" + "x" * 90, 0, 5, 5), TimelineRow("日本語", 0, 5, 5, depth=1)]
    drawn = render_rows(lanes, 60)
    assert "\033" not in drawn
    assert "…" in drawn
    first, second = drawn.splitlines()[1:]
    assert first.index("━") == second.index("╰") + 3  # each wide character takes two columns


@pytest.mark.parametrize(
    ("label", "columns"),
    [("tea", 3), ("茶葉", 4), ("cafe\u0301", 4), ("ที่", 1), ("हिन्दी", 5)],
)
def test_rows_are_as_wide_as_their_labels_are_in_a_terminal(label, columns):
    lanes = [TimelineRow("as wide as any", 0, 5, 5), TimelineRow(label, 0, 5, 5)]
    first, second = render_rows(lanes, 80).splitlines()[1:]
    assert len(second) - len(label) + columns == len(first)


def test_colour_only_adds_escapes():
    counts = counts_of(TWO)
    plain = render_timeline(counts.trace, 80, topics=counts.topics)
    colored = render_timeline(counts.trace, 80, True, topics=counts.topics)
    assert colored != plain
    assert re.sub(r"\033\[\d*m", "", colored) == plain


def test_an_empty_timeline_and_empty_threads_can_be_drawn():
    assert render_rows([], 80).strip() == ""
    assert "main" in render_rows([TimelineRow("main", 0, 0, 0)], 80)
    assert "chunk" in render_rows([TimelineRow("main", 0, 9, 9), TimelineRow("chunk", 9, 9, 0, depth=1)], 80)


def test_ascii_has_no_other_characters():
    counts = counts_of(TWO)
    assert to_ascii(render_timeline(counts.trace, 80, topics=("é", "ü", "…"))).isascii()
