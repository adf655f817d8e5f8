"""PASTA: language models that mark which parts of an answer can be decoded at the same time.

The packages import one way, down this list: ``lang`` (the annotation language), ``interpreter`` (what a tag
means), ``engine`` (decoding), ``data``, ``training``, ``evaluation``.
"""

__version__ = "0.1.0"
