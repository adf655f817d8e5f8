"""Candidates for preference finetuning: sampled answers, their scores, and pairs of best and worst."""
