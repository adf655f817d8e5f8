"""Measuring speed and quality against the sequential twin."""
