"""Reinforcement learning under thread masks: groups of answers, their rewards, and GRPO on the tokens of their
threads."""
