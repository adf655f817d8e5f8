"""Corpora, annotations and training examples."""
