"""Schemathesis against the OpenAPI page: no request that it thinks of is a server error, or answered otherwise than
the page says. A few requests a route, always the same ones."""

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
ROUTES = [
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
]


# A route without parameters has nothing that a request could get wrong.
WAYS = [
    (method, path, mode)
    for method, path in ROUTES
    for mode in schemathesis.GenerationMode
    if mode.is_positive or method == "POST" or "{" in path
]


@pytest.mark.parametrize(("method", "path", "mode"), WAYS)
def test_no_request_is_answered_otherwise_than_the_page_says(url, method, path, mode):
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path][method]

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=15,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def run(case):
        if mode.is_positive and isinstance(case.body, dict):
            # A model that is served, and a short answer: all else is Schemathesis's.
            case.body |= {"model": "pasta-atlas", "max_tokens": 2}
            case.body.pop("max_completion_tokens", None)
        response = case.call(timeout=60)
        case.validate_response(response, checks=CHECKS)

    run()
