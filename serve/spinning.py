"""How long a Decoder's threads spin while they wait for each other, before they sleep.

A step has a hundred products and more that its threads share, and to wake a thread that sleeps takes longer than some
of them. Threads that spin until there is work again, as OpenMP's do by default, take the cores from the processes
beside them for milliseconds. So they spin about as long as the time from one product to the next, and then sleep.
"""

import os

#: What GCC's OpenMP, which torch comes with, reads when torch is imported: how often a thread looks for work before it
#: sleeps. 1,000 times take about 15 microseconds.
_NAME, _LOOKS = "GOMP_SPINCOUNT", "1000"


def spin_briefly(threads: int) -> None:
    """Have this process's threads do so if it has several, unless the environment says how they wait. Before torch is
    imported."""
    if threads > 1 and os.environ.get("OMP_WAIT_POLICY", "").lower() != "active":
        os.environ.setdefault(_NAME, _LOOKS)
