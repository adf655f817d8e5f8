"""Results computed from an evaluation's records: outcomes, summaries, comparisons, win rates."""
