"""How many Decoders there should be. Ray pickles this module by value: it imports nothing of ours.

Serve's own policy counts calls, but an answer with twelve chunks at home is one call and twelve lanes.
"""

import math
from typing import Any

from ray.serve.config import AutoscalingContext

#: The name of what each Decoder reports: threads that decode, and requests that wait for a slot.
LANES = "lanes"


class LanesPolicy:
    """One replica for each ``target_lanes`` lanes. Serve applies the delays and bounds of its configuration."""

    def __init__(self, target_lanes: float) -> None:
        self._target = target_lanes

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """The number of replicas wanted now, and a state (there is none)."""
        reports = (context.aggregated_metrics or {}).get(LANES, {})
        if not reports:  # nobody has reported yet
            return context.target_num_replicas, {}
        wanted = math.ceil(sum(reports.values()) / self._target)
        bounds = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        return min(max(wanted, bounds[0]), bounds[1]), {}
