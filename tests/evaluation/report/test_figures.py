"""Figures can be read: nothing is cut off, labels do not lie on each other, a method looks the same everywhere."""

import ast
import itertools
import random
from functools import cache
from pathlib import Path

import pytest
from matplotlib.text import Annotation, Text

import pasta
from pasta.evaluation.report.families import draw_families
from pasta.evaluation.report.lanes import choose, draw_lanes, featured
from pasta.evaluation.report.pareto import draw_pareto
from pasta.evaluation.report.speed import draw_distribution, draw_groups
from pasta.evaluation.report.style import looks, report_style
from pasta.evaluation.report.tokens import draw_budget
from pasta.evaluation.results.outcomes import outcomes_of
from pasta.evaluation.results.summary import summarise_evaluation
from tests.support.evaluations import answer, prompt
from tests.support.judged import section, summary_of
from tests.support.reports import METHODS, evaluation, threaded


def many(prompts=12):
    """Fifteen methods, two lines of five among them; and a name that is too long for any figure."""
    methods = {"twin": section("sequential"), "sot": section("sot"), "apar": section("apar")}
    methods["a-method-whose-name-is-longer-than-a-figure-is-wide-" + 40 * "x"] = section()
    methods["sft"] = section(label="PASTA, stage 1")
    methods |= {
        f"r{r}-{w}": section(line=f"round {r}", label=f"λ={w}")
        for r in (1, 2)
        for w in ("1", "2", "4", "8", "∞")
    }
    rng = random.Random(0)
    records, verdicts = [], []
    for n in range(prompts):
        answers = {name: threaded(seconds=[rng.uniform(0.3, 0.6)]) for name in methods}
        answers["twin"] = answer(tokens=40 * n + 20, seconds=[1.0])
        family = f"family number {n % 4}"
        records.append(prompt(str(n), answers, text=30 * "Is it $5 or $6? ", family=family, independent=True))
        verdicts.append(
            {"key": str(n), "verdicts": {name: {"quality": rng.uniform(0.8, 1), "n": 0} for name in methods}}
        )
    return records, verdicts, methods


def few():
    return *evaluation(3), METHODS


@cache
def drawn(make):
    return draw_all(*make())


def draw_all(records, verdicts, methods):
    summary = summarise_evaluation(records, verdicts, baseline="twin", methods=methods)
    outcomes = outcomes_of(records, verdicts, baseline="twin", methods=methods)
    first = featured(summary)
    with report_style():
        canvases = {
            "pareto": draw_pareto(summary),
            "distribution": draw_distribution(summary, outcomes),
            "groups": draw_groups(summary),
            "lanes": draw_lanes(summary, outcomes[first], first),
            "budget": draw_budget(summary),
            "families": draw_families(summary),
        }
        for canvas in canvases.values():
            canvas.figure.canvas.draw()
    return canvases


def shown_texts(figure):
    """All texts but those of ticks beyond the ends of an axis."""
    beyond = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = (tick for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high)
            beyond |= {label for tick in ticks for label in (tick.label1, tick.label2)}
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in beyond
    ]


@pytest.mark.slow
@pytest.mark.parametrize("make", [few, many])
def test_no_text_leaves_its_figure(make):
    for name, canvas in drawn(make).items():
        frame = canvas.figure.bbox
        for text in shown_texts(canvas.figure):
            box = text.get_window_extent()
            inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= frame.x1 + 1 and box.y1 <= frame.y1 + 1
            assert inside, f"{name}: {text.get_text()!r} is cut off"


@pytest.mark.slow
@pytest.mark.parametrize("make", [few, many])
def test_no_label_of_the_pareto_figure_lies_on_another(make):
    methods = make()[2]
    canvas = drawn(make)["pareto"]
    labels = [label for label in canvas.figure.findobj(Annotation) if label.get_text()]
    assert len(labels) == len(methods) + 1  # and the paper's
    for a, b in itertools.combinations(labels, 2):
        first, second = a.get_window_extent(), b.get_window_extent()
        assert not first.overlaps(second), f"{a.get_text()!r} lies on {b.get_text()!r}"


def test_the_shaded_region_ends_at_the_front():
    summary = summary_of({"twin": [(4.0, 0.9)] * 4, "sot": [(2.0, 0.5)] * 4, "pasta": [(1.0, 0.7)] * 4})
    assert summary.front == ("twin", "pasta")
    with report_style():
        axes = draw_pareto(summary).figure.axes[0]
    (shade,) = (
        path for collection in axes.collections for path in collection.get_paths() if len(path.vertices) > 6
    )
    for (x, y), dominated in {
        (2.0, 0.5): True,
        (0.99, 0.89): True,
        (4.1, 0.5): False,
        (2.0, 0.75): False,
    }.items():
        assert shade.contains_point((x, y)) == dominated


def test_a_baseline_may_have_a_line_of_its_own():
    records, verdicts = evaluation(2)
    methods = METHODS | {"twin": section("sequential", line="one by one", label="float32")}
    summary = summarise_evaluation(records, verdicts, baseline="twin", methods=methods)
    with report_style():
        labels = [label.get_text() for label in draw_pareto(summary).figure.findobj(Annotation)]
    assert "one by one: float32" in labels


@pytest.mark.parametrize("extra", [0, 20])
def test_each_method_has_a_look_of_its_own(extra):
    records, verdicts, methods = many(1)
    methods |= {f"more-{n}": section() for n in range(extra)}
    methods |= {f"line-{n}": section(line=f"line {n}") for n in range(extra // 2)}
    found = looks(summarise_evaluation(records, verdicts, baseline="twin", methods=methods))
    assert found.keys() == methods.keys()
    assert len({(look.color, look.marker) for look in found.values()}) == len(methods)


def test_a_method_keeps_its_look_when_others_have_no_figures():
    records, verdicts = evaluation(3)
    without = [{**record, "verdicts": {"twin": record["verdicts"]["twin"]}} for record in verdicts]
    whole, bare = (
        looks(summarise_evaluation(records, said, baseline="twin", methods=METHODS))
        for said in (verdicts, without)
    )
    assert whole == bare


def lanes_of(seconds):
    records = [
        prompt(str(n), {"twin": answer(), "pasta": threaded(seconds=[value])})
        for n, value in enumerate(seconds)
    ]
    return outcomes_of(records, [], baseline="twin", methods=["pasta"])["pasta"]


def test_lanes_are_of_the_fastest_the_median_and_the_slowest_prompt():
    chosen = choose(lanes_of([0.5, 0.1, 0.9, 0.3, 0.7]), "realised")
    assert [(title, outcome.key) for title, outcome in chosen] == [
        ("fastest", "1"),
        ("median", "0"),
        ("slowest", "2"),
    ]


def test_with_few_prompts_one_may_be_several():
    assert [title for title, _ in choose(lanes_of([0.5]), "realised")] == ["fastest and median and slowest"]
    assert [title for title, _ in choose(lanes_of([0.5, 0.1]), "realised")] == [
        "fastest",
        "median and slowest",
    ]


def test_waits_are_hatched():
    summary = summary_of({"twin": [(1.0, 1.0)], "pasta": [(1.0, 1.0)]})
    with report_style():
        axes = draw_lanes(summary, lanes_of([0.5]), "pasta").figure.axes[0]
    hatched = [bar for bar in axes.patches if bar.get_hatch()]
    assert [(bar.get_x(), bar.get_width()) for bar in hatched] == [(8, 22)]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        "twin",
        "main thread",
        "green tea",
        "costs $5 to $9",
    ]


def test_a_skeleton_and_an_answer_without_points_are_called_that():
    threads = [
        {"start": 0, "end": 20, "waits": [], "parent": None, "topic": None},
        {"start": 20, "end": 90, "waits": [], "parent": 0, "topic": None},
    ]
    sot = answer(critical_path=90, threads=threads, budget={"skeleton": 20, "text": 70})
    (outcome,) = outcomes_of(
        [prompt("a", {"twin": answer(), "pasta": sot})], [], baseline="twin", methods=["pasta"]
    )["pasta"]
    with report_style():
        canvas = draw_lanes(summary_of({"twin": [(1.0, 1.0)], "pasta": [(1.0, 1.0)]}), [outcome], "pasta")
    labels = [tick.get_text() for tick in canvas.figure.axes[0].get_yticklabels()]
    assert labels == ["twin", "skeleton", "whole answer"]


@pytest.mark.slow
def test_matplotlib_is_imported_where_pictures_are_drawn_only():
    library = Path(pasta.__file__).parent
    root = library.parent.parent
    benchmark = library / "benchmark"
    pictures = {
        library / "simulation" / "plot.py",
        benchmark / "peers" / "plot.py",
        benchmark / "load" / "breakdown.py",
    }
    for file in (*library.rglob("*.py"), *(root / "jobs").glob("*.py"), *(root / "serve").rglob("*.py")):
        if file.parent == library / "evaluation" / "report" or file in pictures:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.partition(".")[0] == "matplotlib" for name in names), file


def test_the_pareto_figure_counts_the_prompts_of_qualities_too():
    """Answers that were cut have a quality and no speedup, answers with an invalid verdict the other way round."""
    records = [prompt(str(n), {"twin": answer(), "pasta": threaded()}) for n in range(6)]
    records[0]["answers"]["pasta"]["finish_reason"] = "length"
    verdicts = [
        {"key": str(n), "verdicts": {"twin": {"quality": 1.0, "n": 1}, "pasta": {"quality": quality}}}
        for n, quality in enumerate((0.5, 1.0, 0.5, None, None, None))
    ]
    methods = {"twin": section("sequential"), "pasta": section()}
    summary = summarise_evaluation(records, verdicts, baseline="twin", methods=methods)
    with report_style():
        texts = [text.get_text() for text in draw_pareto(summary).figure.findobj(Text)]
    assert any(text.startswith("3–6 prompts, batch 1, greedy.") for text in texts)
