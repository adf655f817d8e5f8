"""Conclusions follow from the numbers."""

from dataclasses import replace

from pasta.evaluation.report.findings import findings
from tests.support.judged import section, summary_of

MANY = 12


def flat(seconds, quality):
    return [(seconds, quality)] * MANY


def found(table, **sections):
    return "\n".join(findings(summary_of(table, **sections)))


def test_the_fastest_is_named_with_what_it_costs():
    text = found({"twin": flat(3.0, 0.9), "sot": flat(1.0, 0.7), "pasta": flat(1.5, 0.9)})
    assert "The fastest is **sot**: 3.00×, difference in quality −0.200." in text
    assert "The fastest whose mean quality is at least twin’s is **pasta**: 2.00×" in text


def test_where_nothing_is_faster_it_says_so():
    text = found({"twin": flat(1.0, 0.9), "sot": flat(2.0, 0.9)})
    assert "No method is faster than twin: the fastest, **sot**, reaches 0.50×." in text
    assert "**sot** is dominated by *twin*. *twin* is 2.00× as fast, and as good." in text


def test_where_all_lose_quality_it_says_so():
    text = found({"twin": flat(2.0, 0.9), "sot": flat(1.0, 0.7), "slow": flat(4.0, 0.9)})
    assert "No faster method has on average the quality of twin or a better one." in text


def test_a_difference_within_the_noise_is_called_that():
    mixed = [(1.0, 1.0 if n % 2 else 0.0) for n in range(MANY - 1)] + [(1.0, 1.0)]
    text = found({"twin": flat(2.0, 0.5), "pasta": mixed})
    assert "which cannot be told from none" in text
    assert "dominated by *pasta*†" in text
    assert "quality not told from the same" in text


def test_a_few_prompts_show_no_difference_though_all_differ_to_one_side():
    text = found({"twin": [(2.0, 0.5)] * 2, "pasta": [(1.0, 0.75)] * 2})
    assert "difference in quality +0.250, of too few prompts to be told from none." in text
    assert "dominated by *pasta*†" in text
    assert "or fewer than 6 of them differ" in text


def test_a_clear_dominance_has_no_mark():
    text = found({"twin": flat(2.0, 0.5), "pasta": flat(1.0, 0.75)})
    assert (
        "**twin** is dominated by *pasta*. *pasta* is 2.00× as fast, with a difference in quality of +0.250."
        in text
    )
    assert "†" not in text


def test_the_points_of_a_line_are_named_together():
    lines = {name: section(line=f"round {name[1]}", label=name) for name in ("a1", "b1", "a2", "b2")}
    text = found(
        {
            "twin": flat(4.0, 0.2),
            "a1": flat(2.0, 0.5),
            "b1": flat(1.0, 0.4),
            "a2": flat(1.5, 0.6),
            "b2": flat(0.5, 0.3),
        },
        **lines,
    )
    assert "**twin** is dominated by all 2 of *round 1* and all 2 of *round 2*." in text
    assert "**round 1 a1** is dominated by *round 2* (a2)." in text
    assert "Of *round 1*’s 2 points, 1 are dominated by a point of *round 2*; of *round 2*’s 2, 0" in text


def test_without_quality_only_speed_is_told():
    text = found({"twin": flat(2.0, None), "sot": flat(1.0, None)})
    assert text.splitlines()[0] == "The fastest is **sot**: 2.00×."
    assert "dominated" not in text
    assert "quality" not in text


def test_where_nothing_was_timed_speeds_are_called_theoretical():
    summary = replace(summary_of({"twin": flat(2.0, 0.9), "sot": flat(1.0, 0.7)}), speed_name="theoretical")
    assert findings(summary)[0] == "Nothing was timed: all speeds here are theoretical."
    assert "timed" not in found({"twin": flat(2.0, None), "sot": flat(1.0, None)})
