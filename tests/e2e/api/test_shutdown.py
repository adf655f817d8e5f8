"""SIGTERM: the service finishes what it has begun, sends away what is new, and ends.

The last tests of their folder (conftest.py).
"""

import json
import signal
import threading
import time

import httpx

from tests.e2e.api.test_http import long_request
from tests.support.service import Service

HELLO = {"model": "pasta-atlas", "messages": [{"role": "user", "content": "Hello"}]}
NUM_CHOICES = 6


def test_sigterm_finishes_the_open_answers_and_refuses_new_ones(service: Service, http: httpx.Client) -> None:
    # Thousands of tokens, one a step: they are not done before all is said below.
    many = long_request(stream=True) | {"n": NUM_CHOICES, "max_tokens": 2000}
    codes: list[int] = []
    with http.stream("POST", "/v1/chat/completions", json=many) as response:
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()
        next(lines)
        ending = threading.Thread(target=lambda: codes.append(service.end(signal.SIGTERM, timeout_s=120)))
        ending.start()
        service.wait_for("finishing open requests")
        while http.get("/ready").status_code != 503:
            time.sleep(0.01)
        refused = http.post("/v1/chat/completions", json=HELLO)
        events = [line.removeprefix("data: ") for line in lines if line]
    ending.join()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "service_unavailable"
    assert refused.headers["retry-after"] == "1"
    assert events.pop() == "[DONE]"
    ends = [choice["finish_reason"] for event in events for choice in json.loads(event)["choices"]]
    assert sum(reason is not None for reason in ends) == NUM_CHOICES
    assert codes == [128 + signal.SIGTERM]
    assert service.leaves_nothing()
