"""Where a request's milliseconds go, told from its trace and the client's clock."""

import pytest

from pasta.benchmark.load.breakdown import ENGINE, STAGES, breakdown_report, draw_breakdown, stages
from pasta.benchmark.load.client import TimedReply
from pasta.errors import UserError

MARKS = [
    ["body", 100.001],
    ["to the Interpreter", 100.003],
    ["admission", 100.006],
    ["encoding", 100.010],
    ["to the Decoder", 100.015],
    ["decoding", 100.021],
    ["from the Decoder", 100.121],
    ["end", 100.128],
]


def reply() -> TimedReply:
    pasta = {
        "trace": {"otherData": {"marks": MARKS}},
        "timings": {"queue_ms": 2.0, "ttft_ms": 12.0, "total_ms": 100.0},
    }
    return TimedReply("whole", total_s=0.136, pasta=pasta, sent_at=100.0)


def test_each_stage_lasts_until_the_next_one_and_all_together_as_long_as_the_request():
    found = stages(reply())
    expected = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 2.0, 10.0, 88.0, 7.0, 8.0]
    assert [*found] == [*STAGES]
    assert [*found.values()] == pytest.approx(expected, abs=0.01)
    assert sum(found.values()) == pytest.approx(136.0, abs=0.01)


def test_a_service_whose_traces_do_not_say_when_stages_began_is_a_clear_mistake():
    with pytest.raises(UserError, match="breakdown: "):
        stages(TimedReply("whole", pasta={"trace": {"otherData": {}}, "timings": {}}))


def test_the_report_has_a_row_for_each_stage_and_what_the_service_adds_to_the_engine():
    found = stages(reply())
    metrics, tables = breakdown_report([{"sequential": found, "parallel": found}])
    assert [metric.value for metric in metrics] == pytest.approx([136.0 - 98.0] * 2, abs=0.01)
    (table,) = tables.values()
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [*STAGES]
    assert set(ENGINE) < set(STAGES)


def test_the_picture_is_written_whole(tmp_path):
    pytest.importorskip("matplotlib")
    found = stages(reply())
    draw_breakdown([{"sequential": found, "parallel": found}], tmp_path / "way.png")
    assert (tmp_path / "way.png").read_bytes().startswith(b"\x89PNG")
