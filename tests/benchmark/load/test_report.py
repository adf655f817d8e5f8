"""Metrics under load follow from records alone."""

import pytest

from pasta.benchmark.load import report
from pasta.benchmark.load.settings import LoadSettings
from pasta.errors import UserError


def answer(total_s, ttft_s=0.1, tokens=100, ending="whole", **rest):
    return {"ending": ending, "total_s": total_s, "ttft_s": ttft_s, "tokens": tokens, "text": "x", **rest}


def block(key, *totals, seconds=1.0):
    return {"key": key, "seconds": seconds, "answers": [answer(total) for total in totals]}


def by_key(metrics):
    return {metric.key: metric for metric in metrics}


def test_latency_is_over_all_rounds_and_compares_prompt_by_prompt():
    records = [
        block("0 8 sequential", 2.0, 4.0),
        block("0 8 parallel", 1.0, 1.0),
        block("1 8 sequential", 2.2, 4.2, seconds=3.0),
        block("1 8 parallel", 1.0, 1.2),
    ]
    metrics, tables = report.latency_report(records)
    found = by_key(metrics)
    assert found["serve.e2e.sequential.8"].value == pytest.approx(3100.0)
    assert found["serve.e2e.sequential.8"].count == 4
    assert found["serve.ttft.parallel.8"].value == pytest.approx(100.0)
    # Medians over rounds: 2.1 over 1.0, 4.1 over 1.1.
    assert found["serve.e2e.ratio.8"].value == pytest.approx((2.1 * 4.1 / 1.1) ** 0.5)
    (table,) = tables.values()
    assert "| 8       | sequential |" in table
    assert "| 100 " in table  # 400 tokens in 4 s


def test_answers_of_which_none_has_text_have_no_first_token():
    records = [
        {"key": "0 1 sequential", "seconds": 2.0, "answers": [answer(0.4) | {"ttft_s": None}] * 2},
    ]
    metrics, tables = report.latency_report(records)
    assert [metric.key for metric in metrics] == ["serve.e2e.sequential.1"]
    *_, row = tables["Latency by clients"].splitlines()
    assert [cell.strip() for cell in row.split("|")][1:7] == [
        "1",
        "sequential",
        "none",
        "none",
        "none",
        "400",
    ]


def test_throughput_is_a_ratio_of_rates_round_by_round():
    records = [
        {"key": "0 8 parallel", "service": [900, 1.0], "bare": [1000, 1.0]},
        {"key": "1 8 parallel", "service": [800, 1.0], "bare": [2000, 2.0]},
    ]
    metrics, _ = report.throughput_report(records)
    assert metrics[0].value == pytest.approx((0.9 * 0.8) ** 0.5)
    assert (metrics[0].target, metrics[0].passed) == (0.85, False)


def test_speedup_over_http_is_compared_with_the_bare_engine_s():
    records = [
        {"http": {"sequential": 2.0, "parallel": 1.0}, "bare": {"sequential": 2.0, "parallel": 1.0}},
        {"http": {"sequential": 1.9, "parallel": 1.0}, "bare": {"sequential": 2.0, "parallel": 1.0}},
    ]
    found = by_key(report.speedup_report(records)[0])
    assert found["serve.speedup.bare"].value == pytest.approx(2.0)
    assert found["serve.speedup.ratio"].value == pytest.approx(0.95**0.5)
    assert found["serve.speedup.ratio"].passed


def test_spread_says_what_it_gained_and_whether_the_texts_are_the_same():
    record = {
        "local": answer(2.0, text="a"),
        "spread": answer(1.0, text="a", spills=3),
        "auto": answer(2.0, text="b"),
    }
    found = by_key(report.spread_report([record, record])[0])
    assert found["serve.spread"].value == pytest.approx(2.0)
    assert found["serve.spread"].note == "2 prompts, 6 chunks away from home, 2 texts the same"
    assert "0 texts the same" in found["serve.auto"].note


def test_a_kill_costs_what_the_same_requests_take_longer():
    record = {
        "undisturbed": [answer(1.0), answer(2.0)],
        "disturbed": [answer(1.5, redispatches=1), answer(0.5, ending="lost")],
        "back_s": 9.0,
    }
    found = by_key(report.kill_report([record])[0])
    assert found["serve.kill.added_s"].value == pytest.approx(0.5)
    assert found["serve.kill.ratio"].value == pytest.approx(1.5)
    assert (found["serve.kill.lost"].value, found["serve.kill.lost"].passed) == (1, False)
    assert "1 threads went on elsewhere" in found["serve.kill.added_s"].note


def test_answers_that_nobody_could_leave_are_told_and_end_no_other_part():
    metrics, tables = report.disconnect_report([{"ended": True}] * 3)
    assert metrics == []
    assert "not measured: every answer was there before its client left" in "".join(tables.values())


def test_stopping_and_refusing_have_targets_in_milliseconds():
    stopped = by_key(
        report.disconnect_report(
            [{"ended": True}, *({"busy_s": 0.01, "idle_s": s} for s in (0.02, 0.03, 0.2))]
        )[0]
    )
    assert stopped["serve.disconnect.p50"].value == pytest.approx(30.0)
    assert stopped["serve.disconnect.p95"].passed is False
    refused = {"refused_s": [0.01] * 200, "without_retry_after": 0, "admitted": [answer(1.0)]}
    found = by_key(report.refuse_report([refused])[0])
    assert found["serve.refuse.p99"].passed
    assert found["serve.refuse.silent"].passed
    assert found["serve.refuse.lost"].passed


def test_a_soak_s_metrics_say_what_must_not_happen():
    record = {
        "requests": 10,
        "seconds": 5.0,
        "endings": {"whole": 8, "left": 1, "lost": 1, "cut": 2},
        "kills": [[1.0, "Decoder"], [2.0, "Gateway"], [3.0, "Decoder"]],
        "idle_s": 0.1,
        "wrong": [{"ending": "lost", "error": "x"}],
        "differing": 0,
        "redispatches": 2,
        "spills": 3,
        "total_s": [1.0, 2.0],
        "memory_mib": {"gateway 1": [float(n * 50) for n in range(40)]},
    }
    metrics, tables = report.soak_report([record])
    found = by_key(metrics)
    assert (found["soak.lost"].passed, found["soak.stuck"].passed, found["soak.memory"].passed) == (
        False,
        True,
        False,
    )
    assert found["soak.cut"].value == 2
    assert "killed: 2 Decoders, 1 Gateways" in found["soak.lost"].note
    assert "gateway 1" in tables["Soak: memory"]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"clients": (0, 8)}, "--clients: 0,8, expected positive integers"),
        ({"clients": ()}, "--clients: , expected positive integers"),
        ({"rounds": 0}, "--rounds: 0, expected a positive integer"),
        ({"prompts": 1}, "--prompts: 1, expected at least 2"),
        ({"kill_every_s": -1}, "--kill-every: -1, expected seconds"),
        ({"timeout_s": 0}, "--timeout: 0, expected a positive number"),
        ({"turns": 4}, "--turns: 4, expected with --peer"),
        ({"think_s": 2.0}, "--think: 2, expected with --turns"),
        ({"think_s": float("inf"), "turns": 2, "peer": "http://a"}, "--think: inf, expected seconds"),
        ({"turns": 5, "peer": "http://a"}, "--turns: 5, expected a divisor of --prompts, 48"),
    ],
)
def test_settings_name_the_option_that_is_wrong(tmp_path, wrong, expected):
    with pytest.raises(UserError) as caught:
        LoadSettings(tmp_path, **wrong)
    assert str(caught.value).startswith(expected)
