"""What several tests of the engine need."""

import pytest

from pasta.engine import graphs
from pasta.engine.drafts import Drafter
from pasta.engine.step_cost import Worth


@pytest.fixture
def every_draft(monkeypatch):
    """Drafts are tried wherever there are any, also where they would not pay."""
    monkeypatch.setattr(Drafter, "_may_pay", lambda self, feeds, numbers: True)
    monkeypatch.setattr(Worth, "tried_next", True)
    monkeypatch.setattr(Drafter, "_pays", lambda self, found, feeds, numbers: [len(d.tokens) for d in found])


@pytest.fixture
def few(monkeypatch):
    """Few steps are captured as an engine starts: those of one lane; others at their second use, as always."""
    monkeypatch.setattr(graphs, "_COMMON_LANES", 1)
    monkeypatch.setattr(graphs, "_LEAST_KEYS", 320)
