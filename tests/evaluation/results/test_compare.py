"""What changed between two evaluations: pairs of prompts, figures with intervals, prompts that moved."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from pasta.cli.compare import comparison_lines
from pasta.errors import UserError
from pasta.evaluation.results.compare import compare_sides, read_side, score_measure
from tests.support.evaluations import answer, cut_short, prompt, write_evaluation


def records(count, seconds=0.5, path=50, family=None, **values):
    """Prompts p0, p1, …: a twin of 1 s and 100 tokens, and PASTA."""
    return [
        prompt(
            f"p{n}",
            {"twin": answer(), "pasta": answer(seconds=[seconds], critical_path=path, **values)},
            family=family,
        )
        for n in range(count)
    ]


def qualities(*values):
    return {f"p{n}": {"pasta": value, "twin": 1.0} for n, value in enumerate(values)}


@pytest.fixture
def write(tmp_path):
    """``write("a", records, qualities, …)``: an evaluation's directory, as text."""
    return lambda name, *given, **values: str(write_evaluation(tmp_path / name, *given, **values))


def compared(a, b, **options):
    return compare_sides(read_side(a), read_side(b), **options)


def change(found, name):
    return next(entry for entry in found.changes if entry.name == name)


def test_ratios_are_geometric_and_differences_arithmetic(write):
    a = write("a", records(6), qualities(*[0.5] * 6))
    b = write("b", records(6, seconds=0.25, path=40, tokens=110), qualities(*[0.6, 0.7] * 3))
    found = compared(a, b)
    assert [entry.name for entry in found.changes] == [
        "quality",
        "realised speedup",
        "theoretical speedup",
        "tokens",
        "critical path",
        "threads",
    ]
    quality, realised = change(found, "quality"), change(found, "realised speedup")
    assert (quality.kind, quality.a, quality.b) == ("difference", pytest.approx(0.5), pytest.approx(0.65))
    assert quality.change == pytest.approx(0.15)
    assert quality.is_change
    assert (realised.kind, realised.a, realised.b, realised.change) == (
        "ratio",
        *map(pytest.approx, (2, 4, 2)),
    )
    assert change(found, "theoretical speedup").change == pytest.approx(1.25)
    assert change(found, "tokens").change == pytest.approx(1.1)
    assert change(found, "critical path").change == pytest.approx(0.8)
    assert change(found, "threads").is_change is False


def test_scores_weigh_the_twin_s_tokens_over_the_critical_path_with_quality(write):
    a = write("a", records(2, path=50), qualities(0.5, 0.5))
    b = write("b", records(2, path=40), qualities(0.25, 0.75))
    score = change(compared(a, b, scores=[score_measure(weight) for weight in (1.0, 4.0)]), "score, λ = 4")
    assert (score.kind, score.a, score.b) == ("difference", 100 / 50 + 4 * 0.5, 100 / 40 + 4 * 0.5)


def test_a_score_that_no_pair_has_is_said_to_be_missing(write):
    a = write("a", records(2))  # without a judge
    found = compared(a, a, scores=(score_measure(4.0),))
    assert not any(entry.name.startswith("score") for entry in found.changes)
    (note,) = found.notes
    assert note == (
        "score, λ = 4: no prompt has one on both sides; it takes a quality and a theoretical speedup of each answer"
    )
    judged = write("b", records(2), qualities(0.5, 1.0))
    assert not compared(judged, judged, scores=(score_measure(4.0),)).notes


def test_a_change_that_differs_from_prompt_to_prompt_is_not_shown_by_few(write):
    a = write("a", records(8), qualities(*[0.5] * 8))
    b = write("b", records(8), qualities(*[0.9, 0.1, 0.8, 0.3] * 2))
    quality = change(compared(a, b), "quality")
    assert quality.low < 0 < quality.high
    assert quality.is_change is False


def test_pairing_shows_what_means_alone_would_not(write):
    spread = [0.1, 0.3, 0.5, 0.7, 0.9, 0.2, 0.6, 0.8]
    a = write("a", records(8), qualities(*spread))
    b = write("b", records(8), qualities(*(value + 0.05 for value in spread)))
    assert change(compared(a, b), "quality").is_change


@pytest.mark.parametrize(("count", "said"), [(1, None), (2, None), (5, None), (6, True)])
def test_a_few_prompts_that_all_changed_to_one_side_may_have_by_chance(write, count, said):
    a = write("a", records(count), qualities(*[1.0] * count))
    found = compared(a, write("b", records(count), qualities(*[0.5] * count)))
    assert change(found, "quality").is_change is said
    row = next(line for line in comparison_lines(found) if line.startswith("  quality"))
    assert ("changed" in row) is (said is True)
    assert ("too few prompts" in row) is (said is None)


@pytest.mark.parametrize(("worse", "said"), [(5, False), (6, True)])
def test_a_few_of_many_prompts_that_changed_to_one_side_may_have_by_chance(write, worse, said):
    a = write("a", records(40), qualities(*[1.0] * 40))
    b = write("b", records(40), qualities(*[0.5] * worse, *[1.0] * (40 - worse)))
    assert change(compared(a, b), "quality").is_change is said


def test_an_evaluation_against_itself_changed_in_nothing(write):
    a = write("a", records(6, family="planets"), qualities(*[0.5, 0.7, 1.0] * 2))
    found = compared(a, a)
    assert not found.configuration
    assert not found.notes
    assert all(entry.is_change is False for entry in found.changes)
    assert not any(found.moved.values())


def test_two_methods_of_one_evaluation_are_compared(write):
    three = [
        prompt(
            f"p{n}",
            {"twin": answer(), "pasta": answer(seconds=[0.5]), "apar": answer(seconds=[0.8])},
        )
        for n in range(3)
    ]
    a = write("a", three)
    found = compare_sides(read_side(f"{a}:apar"), read_side(a, "pasta"))
    assert (found.a["method"], found.b["method"]) == ("apar", "pasta")
    assert change(found, "realised speedup").change == pytest.approx(1.6)


def test_invalid_verdicts_and_cut_answers_are_counted_and_left_out(write):
    a = write("a", records(4), qualities(0.5, None, 0.5, 0.5))
    cut = records(4)
    cut[3]["answers"]["pasta"]["finish_reason"] = "length"
    cut[2]["answers"]["pasta"] = {"skipped": "too long"}
    found = compared(a, write("b", cut, qualities(0.5, 0.5)))
    assert (found.a["invalid"], found.b["cut"], found.b["skipped"]) == (1, 1, 1)
    assert change(found, "quality").count == 1
    assert change(found, "realised speedup").count == 2


def test_a_single_pair_has_no_interval(write):
    a = write("a", records(1), qualities(0.5))
    quality = change(compared(a, write("b", records(1), qualities(0.75))), "quality")
    assert (quality.change, quality.low, quality.high, quality.is_change) == (0.25, None, None, None)


def test_prompts_that_one_side_lacks_are_named(write):
    other = records(5)[2:]
    other[0]["messages"] = [{"role": "user", "content": "Something else?"}]
    found = compared(write("a", records(4)), write("b", other))
    assert found.prompts.common == 1
    assert (found.prompts.only_a, found.prompts.only_b, found.prompts.altered) == (
        ("p0", "p1"),
        ("p4",),
        ("p2",),
    )


def test_prompts_that_moved_most_come_first(write):
    a = write("a", records(4), qualities(0.5, 0.5, 0.5, 0.5))
    other = records(4)
    other[1]["answers"]["pasta"]["seconds"] = [0.25]
    other[2]["answers"]["pasta"]["seconds"] = [0.8]
    found = compared(a, write("b", other, qualities(0.1, 0.4, 0.9, 0.5)), top=1)
    assert [(entry.key, entry.a, entry.b) for entry in found.moved["quality down"]] == [("p0", 0.5, 0.1)]
    assert [entry.key for entry in found.moved["quality up"]] == ["p2"]
    assert [entry.key for entry in found.moved["speed up"]] == ["p1"]
    assert [entry.key for entry in found.moved["speed down"]] == ["p2"]
    assert found.moved["speed up"][0].prompt == "Tell me about p1."


def test_without_times_theoretical_speedup_stands_for_speed(write):
    untimed = [{"seconds": []}, {"seconds": []}]
    a, b = (
        [
            prompt(f"p{n}", {"twin": answer(**none), "pasta": answer(critical_path=path, **none)})
            for n in (0, 1)
        ]
        for path, none in zip((50, 40), untimed, strict=True)
    )
    found = compared(write("a", a), write("b", b))
    assert found.speed == "theoretical speedup"
    assert "realised speedup" not in [entry.name for entry in found.changes]
    assert len(found.moved["speed up"]) == 2


@pytest.mark.parametrize("threads", [[], None])
def test_an_endpoint_s_answers_have_no_critical_path(write, threads):
    far = [
        prompt(f"p{n}", {"twin": answer(), "pasta": answer(critical_path=None, steps=None, threads=threads)})
        for n in (0, 1)
    ]
    names = [entry.name for entry in compared(write("a", records(2)), write("b", far)).changes]
    assert names == ["realised speedup", "tokens"]


def test_families_have_figures_of_their_own(write):
    def two(seconds):
        return [
            *records(2, seconds, family="planets"),
            *(r | {"key": r["key"] + "x"} for r in records(1, 0.5, family="ranges")),
        ]

    found = compared(write("a", two(0.5)), write("b", two(0.25)))
    assert [*found.families] == ["planets", "ranges"]
    assert [(entry.name, entry.change) for entry in found.families["planets"]] == [
        ("realised speedup", pytest.approx(2.0))
    ]


def test_families_in_which_nothing_can_be_compared_have_no_table(write):
    a = write("a", records(2, family="planets", finish_reason="length"))  # cut, and without a judge
    found = compared(a, a)
    assert not found.families
    assert not any(line.lstrip().startswith("family") for line in comparison_lines(found))


def test_keys_of_the_configuration_that_differ_are_named(write):
    methods = {"twin": {"kind": "sequential", "model": "t"}, "pasta": {"kind": "pasta", "model": "p1"}}
    a = write(
        "a", records(2), methods=methods, limits={"max_tokens": 512}, inputs={"methods.pasta.model": "1"}
    )
    methods = methods | {"pasta": {"kind": "pasta", "model": "p1", "promise_bias": 1.0, "label": "new"}}
    b = write(
        "b",
        records(2),
        methods=methods,
        limits={"max_tokens": 1024},
        inputs={"methods.pasta.model": "2", "methods.sot.model": "9"},
        code_version="def",
    )
    found = compared(a, b)
    assert {entry.key: (entry.a, entry.b) for entry in found.configuration} == {
        "limits.max_tokens": (512, 1024),
        "method.promise_bias": (None, 1.0),
        "content of method.model": ("1", "2"),
        "code version": ("abc", "def"),
    }
    assert "the model has the same name and another content" in found.notes


def test_the_baseline_s_own_model_is_known_when_it_is_the_method_that_is_compared(write):
    methods = {"twin": {"kind": "sequential", "model": "m"}, "pasta": {"kind": "pasta", "model": "m"}}
    a = write("a", records(2), methods=methods, inputs={f"methods.{name}.model": "1" for name in methods})
    found = compare_sides(read_side(f"{a}:twin"), read_side(f"{a}:pasta"))
    assert [entry.key for entry in found.configuration] == ["method.kind"]
    assert not found.notes


def test_what_makes_figures_incomparable_is_said(write):
    methods = {"twin": {"kind": "sequential", "model": "t"}, "pasta": {"kind": "pasta"}}
    a = write("a", records(2), methods=methods, judge={"kind": "grader"})
    methods = methods | {"twin": {"kind": "sequential", "model": "other"}}
    b = write("b", records(2), methods=methods, judge={"kind": "teacher"}, finished=False)
    notes = " / ".join(compared(a, b).notes)
    assert "the judges differ" in notes
    assert (
        "the baselines differ: each speedup is against its own, and so is a quality found by comparing"
        in notes
    )
    assert "not finished" in notes


def test_answers_that_are_gone_since_it_was_finished_are_said_to_be(write):
    a, b = write("a", records(3)), write("b", records(3))
    cut_short(Path(b), "answers.jsonl")
    said = (f"{b}: the answers to 1 of 3 prompts are gone; what is there is compared",)
    assert compared(a, b).notes == compared(b, b).notes == said


@pytest.mark.parametrize(
    ("other", "is_said"),
    [
        ({"date": "2026-11-27", "load_average": [4.0]}, False),
        ({"gpu": "NVIDIA H100"}, True),
        ({"processor": "AMD EPYC"}, True),
        ({"formats": {"twin": "bfloat16", "pasta": "int8", "sot": "bfloat16"}}, True),
        ({"formats": {"twin": "bfloat16", "pasta": "bfloat16", "sot": "int8"}}, False),
    ],
)
def test_answers_of_other_machines_or_in_other_number_formats_are_said_to_be(write, other, is_said):
    formats = {"twin": "bfloat16", "pasta": "bfloat16", "sot": "bfloat16"}
    machine = {"processor": "Xeon", "date": "2026-11-26", "load_average": [0.1], "formats": formats}
    sides = [write(name, records(2)) for name in ("a", "b")]
    for side, values in zip(sides, (machine, machine | other), strict=True):
        (Path(side) / "machines.json").write_text(json.dumps([values]))
    assert ("the machines or number formats differ" in " / ".join(compared(*sides).notes)) == is_said


@pytest.mark.parametrize(("twin", "is_said"), [({"kind": "endpoint"}, False), ({"kind": "sequential"}, True)])
def test_the_machine_that_asks_endpoints_alone_is_no_matter(write, twin, is_said):
    endpoint = {"base_url": "http://127.0.0.1:1", "model": "m"}
    methods = {"twin": twin, "pasta": {"kind": "sot", "endpoint": endpoint}}
    if not is_said:
        methods["twin"] = twin | {"endpoint": endpoint}
    sides = [write(name, records(2), methods=methods) for name in ("a", "b")]
    for side, processor in zip(sides, ("Xeon", "EPYC"), strict=True):
        (Path(side) / "machines.json").write_text(json.dumps([{"processor": processor}]))
    assert ("the machines or number formats differ" in " / ".join(compared(*sides).notes)) == is_said


@pytest.mark.parametrize(
    ("given", "method", "expected"),
    [
        ("nowhere", None, "nowhere: no such directory"),
        ("DIR:sot", None, "no method 'sot'; it has twin, pasta, apar"),
        ("DIR", "sot", "no method 'sot'"),
        ("DIR", None, "which method? It has twin, pasta, apar; say DIR:METHOD or --method METHOD"),
    ],
)
def test_bad_input_is_one_line(write, given, method, expected):
    a = write("a", [prompt("p0", {name: answer() for name in ("twin", "pasta", "apar")})])
    with pytest.raises(UserError) as caught:
        read_side(given.replace("DIR", a), method)
    assert expected.replace("DIR", a) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_evaluations_of_other_prompts_are_refused(write):
    other = [record | {"key": f"q{n}"} for n, record in enumerate(records(2))]
    with pytest.raises(UserError, match="no prompt in common"):
        compared(write("a", records(2)), write("b", other))


def test_a_comparison_survives_json(write):
    found = compared(
        write("a", records(2), qualities(0.5, 0.25)), write("b", records(2), qualities(1.0, 0.5))
    )
    values = json.loads(json.dumps(asdict(found)))
    assert values["changes"][0]["name"] == "quality"
    assert values["moved"]["quality up"][0]["key"] == "p0"


def test_comparing_needs_no_torch():
    code = "import sys, pasta.cli; print(*{'torch', 'transformers', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
