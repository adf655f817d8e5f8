"""Supervised fine-tuning under the interpreter's own masks and positions."""
