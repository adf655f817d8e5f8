"""The report of an evaluation: Markdown, JSON and figures."""
