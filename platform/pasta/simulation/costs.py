"""The costs of engine steps: measured, or an estimate. A step may hold a forward of a prompt's chunk and one of all
lanes."""

from pasta.placement import LaneCosts
from pasta.simulation.calibration import MeasuredCosts
from pasta.simulation.roofline import RooflineSection

_LANES = (1, 2, 4, 8, 16, 32)
StepCosts = MeasuredCosts | RooflineSection


def lane_costs(costs: StepCosts, prefill_chunk: int) -> LaneCosts:
    """Return the lane costs for placement, as a Decoder measures them at its start: one answer on an idle engine."""
    lanes = [count for count in _LANES if count == 1 or costs.covers(1, count, 1)]
    step_s = {count: costs.lanes_s(1, count, 1) for count in lanes}
    return LaneCosts.of(step_s, costs.prefill_s(prefill_chunk, prefill_chunk) / prefill_chunk)
