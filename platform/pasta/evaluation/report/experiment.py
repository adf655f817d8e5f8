"""Sections of the report on whole lines of methods, and on what methods mark compared with the ground truth."""

from pasta.evaluation.report.findings import share, signed
from pasta.evaluation.results.summary import Summary
from pasta.markdown import markdown


def areas_section(summary: Summary) -> list[str]:
    """The area under the front of each line; nothing with fewer than two lines."""
    if len(summary.areas) < 2:
        return []
    rows = [
        [
            entry.line,
            len(entry.methods),
            share(entry.area),
            "–" if entry.gain is None else f"{signed(entry.gain)} over {entry.over}",
        ]
        for entry in summary.areas
    ]
    speed, quality = summary.reference
    return [
        "## Lines as wholes",
        markdown(["line", "methods", "area under the front", "gain over the line before"], rows),
        f"The area of all (speed, quality) that a line reaches above {speed:.1f}× and {quality:g}, over the "
        f"{summary.areas[0].prompts} prompts that every method has both of. Speed is {summary.speed_name}; "
        "intervals are paired over prompts.",
    ]


def marks_section(summary: Summary) -> list[str]:
    """What each method marks, where the truth is known."""
    known = [method for method in summary.candidates if method.marks is not None]
    if not known:
        return []
    rows = [
        [
            method.title,
            share(method.marks.independent_marked),
            share(method.marks.wrong_forks),
            share(method.marks.syncs_right),
        ]
        for method in known
        if method.marks is not None
    ]
    header = ["method", "independent parts marked", "wrong forks", "right syncs"]
    return [
        "What is marked, against the tasks’ ground truth:",
        markdown(header, rows),
        "Independent parts marked: of an answer’s independent parts, those that are a chunk of their own. Wrong forks: "
        "of the answers in which nothing is independent, those that fork. Right syncs: of the answers that fork where "
        "something reads the parts, those with every sync where it belongs.",
    ]
