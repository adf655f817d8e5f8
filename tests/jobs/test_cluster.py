"""How a job starts Ray."""

import pytest
import ray

from jobs.cluster import start_ray

TOO_SLOW = "The current node timed out during startup. This could happen because …"


class Starts:
    """Stands in for ``ray.init``: a machine too busy to start Ray in time cannot be had on demand."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)
        self.calls: list[dict[str, object]] = []

    def __call__(self, **options: object) -> None:
        self.calls.append(options)
        if self.errors:
            raise Exception(self.errors.pop(0))


@pytest.fixture
def starts(monkeypatch):
    def use(*errors: str) -> Starts:
        monkeypatch.setattr(ray, "init", found := Starts(*errors))
        return found

    return use


def test_ray_that_was_too_slow_is_started_once_more(starts):
    init, retries = starts(TOO_SLOW), []
    start_ray(lambda: retries.append("once"), num_cpus=2)
    assert init.calls == [{"num_cpus": 2}] * 2
    assert retries == ["once"]


def test_ray_that_is_too_slow_twice_is_an_error(starts):
    init = starts(TOO_SLOW, TOO_SLOW)
    with pytest.raises(Exception, match="timed out during startup"):
        start_ray(lambda: None)
    assert len(init.calls) == 2


def test_another_failure_is_not_tried_again(starts):
    init = starts("no space left on device")
    with pytest.raises(Exception, match="no space left"):
        start_ray(lambda: pytest.fail("tried again"))
    assert len(init.calls) == 1
