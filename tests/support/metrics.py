"""All metrics of the service, and their names in Prometheus."""

from serve.observe.metrics import ENGINE, HTTP, PLACEMENT, MetricSpec

METRICS = {metric.name: metric for metric in (*HTTP, *PLACEMENT, *ENGINE)}


def exported(metric: MetricSpec) -> str:
    """The name in Prometheus; for a histogram without its suffix ``_bucket``, ``_sum`` or ``_count``."""
    return f"ray_{metric.name}{'_total' if metric.kind == 'counter' else ''}"
