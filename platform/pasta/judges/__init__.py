"""Judges of quality, behind one interface: exact grading, a teacher that compares, or a reward model."""

from pasta.judges.judge import Case, Judge, Verdict, judge_records

__all__ = ["Case", "Judge", "Verdict", "judge_records"]
