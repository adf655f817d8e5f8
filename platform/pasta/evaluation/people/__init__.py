"""Prompts as people type them, and whether an answer to one is right."""
