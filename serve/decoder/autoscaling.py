"""Autoscaling policy: the number of Decoders for the lanes in use.

Serve's own policy counts calls, but an answer with twelve chunks at home is one call and twelve lanes. A file of its
own, which imports nothing of ours: Ray pickles the policy's module by value.
"""

import math
from typing import Any

from ray.serve.config import AutoscalingContext

#: The metric that each Decoder reports: its threads that decode plus its requests that wait for a slot.
LANES = "lanes"


class LanesPolicy:
    """Asks for one replica for each ``target_lanes`` lanes. Serve applies the configured delays and bounds."""

    def __init__(self, target_lanes: float) -> None:
        self._target = target_lanes

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas wanted now, and an empty state."""
        reports = (context.aggregated_metrics or {}).get(LANES, {})
        if not reports:  # no replica has reported yet
            return context.target_num_replicas, {}
        wanted = math.ceil(sum(reports.values()) / self._target)
        bounds = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        return min(max(wanted, bounds[0]), bounds[1]), {}
