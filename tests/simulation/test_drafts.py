"""Drafts in a simulation: an assumption that prices steps, and only where they pay."""

import pytest

from pasta.simulation.replica import ReplicaSizes
from tests.support.simulations import Flat, cluster, some_scripts

SCRIPT = some_scripts()[0].sequential


def seconds(row_s, **sizes):
    costs = Flat(step_s=1.0, lane_s=row_s, token_s=0.0, key_s=0.0)
    made = cluster([SCRIPT], costs=costs, sizes=ReplicaSizes(1, 1024, 64, **sizes))
    made.run(1)
    return made.replicas[0].work.busy_s


def test_drafts_that_are_right_and_free_divide_the_steps():
    assert seconds(0.0, drafts=3, acceptance=1.0) < 0.5 * seconds(0.0)


def test_drafts_that_do_not_pay_are_not_fed():
    assert seconds(1.0, drafts=3, acceptance=0.2) == pytest.approx(seconds(1.0))
    assert seconds(0.0, drafts=3, acceptance=0.0) == pytest.approx(seconds(0.0))


def test_no_drafts_are_assumed_by_default():
    assert seconds(0.1) == seconds(0.1, drafts=0)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"acceptance": 1.5}, "acceptance 1.5"),
        ({"drafts": -1}, "drafts -1"),
        ({"acceptance": 0.9}, "acceptance 0.9: has no effect without drafts"),
    ],
)
def test_an_assumption_that_makes_no_sense_is_refused(sizes, said):
    with pytest.raises(ValueError, match=said):
        ReplicaSizes(1, 1024, 64, **sizes)
