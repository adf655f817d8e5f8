"""``pasta compare`` on the command line."""

import json

import pytest

from pasta.cli.commands import run
from pasta.errors import UserError
from tests.support.evaluations import answer, prompt, write_evaluation


@pytest.fixture
def two(tmp_path):
    """Two evaluations of six prompts; the second is faster on all and worse on one."""

    def records(seconds, **values):
        asked = "Tell me about tea.\nAt length, " + "please " * 20
        answers = {"twin": answer(), "pasta": answer(seconds=[seconds], **values)}
        return [prompt(f"p{n}", answers, asked, family="drinks") for n in range(6)]

    def judged(*values):
        return {f"p{n}": {"pasta": value} for n, value in enumerate(values)}

    a = write_evaluation(tmp_path / "a", records(0.5), judged(*[0.5] * 6), limits={"max_tokens": 512})
    b = write_evaluation(
        tmp_path / "b", records(0.25), judged(0.5, 0.25, *[0.5] * 4), limits={"max_tokens": 99}
    )
    return str(a), str(b)


def test_it_says_what_changed_and_which_prompts_moved(two, capsys):
    assert run(["compare", *two]) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert f"A {two[0]}: pasta (baseline twin), 6 prompts" in lines
    assert "limits.max_tokens 512 -> 99" in lines
    assert "realised speedup 2 4 ×2.000 ×2.000 to ×2.000 changed 6" in lines
    assert "critical path 100 100 ×1.000 ×1.000 to ×1.000 no change shown 6" in lines
    assert any(line.startswith("drinks quality 0.5 0.4583 -0.042") for line in lines)
    at = lines.index("quality down most")
    assert lines[at + 1].startswith("p1 0.500 -> 0.250 Tell me about tea. At length, please")
    assert lines[at + 1].endswith("…")
    assert "quality up most" not in lines


def test_columns_stand_below_each_other_whatever_the_letters(tmp_path, capsys):
    answers = {"twin": answer(), "pasta": answer()}
    records = [prompt(f"p{n}", answers, family=family) for n, family in enumerate(("tea", "茶葉"))]
    both = str(write_evaluation(tmp_path / "a", records))
    assert run(["compare", both, both]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "realised" in line}
    assert rows["tea"].index("realised") == rows["茶葉"].index("realised") + 2  # two letters of two columns


def test_json_holds_all_figures(two, capsys):
    assert run(["compare", *two, "--json", "--top", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompts"]["common"] == 6
    assert [len(found["moved"][name]) for name in ("quality down", "speed up", "speed down")] == [1, 1, 0]


def test_a_mistake_is_one_line(two):
    with pytest.raises(UserError, match="no method 'apar'; it has twin, pasta"):
        run(["compare", *two, "--method", "apar"])


def test_a_method_that_both_sides_name_themselves_is_not_ignored(two):
    a, b = (f"{side}:pasta" for side in two)
    with pytest.raises(UserError, match=r"^--method: 'twin' has no effect"):
        run(["compare", a, b, "--method", "twin"])
    assert run(["compare", a, two[1], "--method", "pasta"]) == 0, "for the side that names none"


def test_scores_are_compared_for_each_weight_that_is_given(two, capsys):
    assert run(["compare", *two, "--quality-weight", "1", "--quality-weight", "4"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line.split(" ")[3] for line in lines if line.startswith("score, λ =")] == ["1", "4"]


@pytest.mark.parametrize(("speed", "score"), [("speedup", 2.0), ("written", 1.0), ("parallelism", 1.2)])
def test_scores_may_count_speed_as_scoring_does(tmp_path, capsys, speed, score):
    answers = {
        "twin": answer(tokens=100),
        "pasta": answer(tokens=60, budget={"text": 50, "promise": 10}, critical_path=50),
    }
    side = str(write_evaluation(tmp_path / "a", [prompt("p", answers, "Tea?")], {"p": {"pasta": 1.0}}))
    assert run(["compare", side, side, "--json", "--quality-weight", "0", "--speed", speed]) == 0
    changes = {change["name"]: change["a"] for change in json.loads(capsys.readouterr().out)["changes"]}
    counted = "" if speed == "speedup" else f", {speed}"
    assert changes[f"score, λ = 0{counted}"] == pytest.approx(score)


def test_speed_without_a_score_is_one_line(two):
    with pytest.raises(UserError, match=r"^--speed: written has no effect without a score"):
        run(["compare", *two, "--speed", "written"])


@pytest.mark.parametrize("given", ["much", "-1", "inf", "nan"])
def test_a_weight_that_is_none_is_one_line(two, capsys, given):
    with pytest.raises(SystemExit) as error:
        run(["compare", *two, f"--quality-weight={given}"])
    assert error.value.code == 2
    assert f"{given!r} is not a weight λ of 0 or more" in capsys.readouterr().err
