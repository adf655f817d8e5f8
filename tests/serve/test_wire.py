"""Messages between processes of which some have older code, as in a rolling update."""

import dataclasses
import pickle
from typing import get_args, get_type_hints

import pytest

from serve import wire


def dataclasses_in(hint):
    """The dataclasses that a type names, and those of their fields."""
    if dataclasses.is_dataclass(hint):
        yield hint
        for each in get_type_hints(hint).values():
            yield from dataclasses_in(each)
    for each in get_args(hint):
        yield from dataclasses_in(each)


#: The messages, and what they carry.
MESSAGES = dict.fromkeys(
    kind
    for found in vars(wire).values()
    if getattr(found, "__module__", "") == "serve.wire"
    for kind in dataclasses_in(found)
)


def test_what_messages_carry_is_among_them():
    assert {"Order", "Limits", "RepetitionDetection", "SamplingParams", "Snapshot", "Grammar"} <= {
        kind.__name__ for kind in MESSAGES
    }


def test_a_report_of_a_decoder_with_older_code_has_the_defaults_of_fields_added_since(monkeypatch):
    old_fields = [("prefixes", dict), ("other_lanes", int), ("num_interpreters", int)]
    older = dataclasses.make_dataclass("Told", old_fields, frozen=True, slots=True)
    older.__module__ = "serve.wire"
    with monkeypatch.context() as patch:
        patch.setattr(wire, "Told", older)
        sent = pickle.dumps(older({}, 3, 2))
    assert pickle.loads(sent) == wire.Told({}, 3, 2, other_slots={})


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_each_kind_of_message_may_lack_its_newest_field(kind):
    every = dataclasses.fields(kind)
    required = [each for each in every if each.default is each.default_factory is dataclasses.MISSING]
    whole = kind(*(each.name for each in required))
    received = kind.__new__(kind)
    received.__setstate__(whole.__getstate__()[: max(len(required), len(every) - 1)])
    assert received.__getstate__() == whole.__getstate__()


def test_what_newer_code_adds_to_a_message_is_left_out():
    received = wire.Accepted.__new__(wire.Accepted)
    received.__setstate__([7, "new"])
    assert received == wire.Accepted(7)
