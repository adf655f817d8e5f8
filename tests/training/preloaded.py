"""What ranks are forked with, imported once. None of it is garbage: their collections do not look through it."""

from serve.imports import uncollected

with uncollected():
    import deepspeed  # noqa: F401

    import pasta.training.preference
    import pasta.training.sft  # noqa: F401
