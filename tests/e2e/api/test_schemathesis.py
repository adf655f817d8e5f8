"""Schemathesis against the OpenAPI page: no request that it thinks of is answered otherwise than the page says."""

from tests.support.schemathesis_run import check_page


def test_no_request_is_answered_otherwise_than_the_page_says(http, url):
    token = http.post("/tokenize", json={"model": "pasta-atlas", "prompt": "a"}).json()["tokens"][-1]
    check_page(url, "pasta-atlas", token)
