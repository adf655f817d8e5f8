"""The report of an evaluation: Markdown, JSON and figures. Matplotlib is imported nowhere else."""

from pasta.evaluation.report.write import log_report, write_report

__all__ = ["log_report", "write_report"]
