"""With ``metrics: true`` the service's port has the service's metrics, from every node of the cluster."""

import functools
import http.server
import ssl
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serve.gateway import exposition
from serve.keys import new_key

PAGES = [
    """# HELP ray_node_cpu CPUs
# TYPE ray_node_cpu gauge
ray_node_cpu{node="a"} 2.0
# HELP ray_pasta_requests_total Answers
# TYPE ray_pasta_requests_total counter
ray_pasta_requests_total{model="m",node="a"} 3.0
# HELP ray_pasta_ttft_seconds First token
# TYPE ray_pasta_ttft_seconds histogram
ray_pasta_ttft_seconds_bucket{le="1.0",node="a"} 1.0
ray_pasta_ttft_seconds_bucket{le="+Inf",node="a"} 2.0
ray_pasta_ttft_seconds_count{node="a"} 2.0
ray_pasta_ttft_seconds_sum{node="a"} 1.5
""",
    """# HELP ray_pasta_requests_total Answers
# TYPE ray_pasta_requests_total counter
ray_pasta_requests_total{model="m",node="b"} 4.0
# HELP ray_serve_x_total Another's
# TYPE ray_serve_x_total counter
ray_serve_x_total 1.0
""",
]


class Page(http.server.BaseHTTPRequestHandler):
    """A node's exporter."""

    def __init__(self, page: str, *arguments):
        self._page = page
        super().__init__(*arguments)

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self._page.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def nodes(monkeypatch):
    """Two nodes that export the pages; their list."""
    servers = [http.server.HTTPServer(("127.0.0.1", 0), functools.partial(Page, page)) for page in PAGES]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    found = [
        {"Alive": True, "NodeManagerAddress": "127.0.0.1", "MetricsExportPort": server.server_port}
        for server in servers
    ]
    monkeypatch.setattr(exposition.ray, "nodes", lambda: found)
    yield found
    for server in servers:
        server.shutdown()
        server.server_close()


def samples(text):
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families), "each family once"
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_the_metrics_of_all_nodes_are_there_and_nothing_of_ray_s_own(requested, nodes):
    response = requested({"metrics": True}, "GET", "/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == exposition.CONTENT_TYPE
    found = samples(response.text)
    assert found["ray_pasta_requests_total", "m", "a"] == 3
    assert found["ray_pasta_requests_total", "m", "b"] == 4
    assert found["ray_pasta_ttft_seconds_bucket", "+Inf", "a"] == 2
    assert {name.split("_")[1] for name, *_ in found} == {"pasta"}


def test_no_certificates_are_read_for_nodes_that_speak_http(requested, nodes, monkeypatch):
    """It takes 30 ms, in which the Gateway's event loop sends nothing to anybody."""
    monkeypatch.setattr(ssl, "create_default_context", None)
    assert requested({"metrics": True}, "GET", "/metrics").status_code == 200


def test_a_node_s_address_may_be_one_of_ipv6(monkeypatch):
    node = {"Alive": True, "NodeManagerAddress": "fd00::1", "MetricsExportPort": 8080}
    monkeypatch.setattr(exposition.ray, "nodes", lambda: [node])
    assert exposition._nodes() == ["http://[fd00::1]:8080/metrics"]


def test_a_node_that_does_not_answer_is_named(requested, nodes):
    nodes.append({**nodes[0], "MetricsExportPort": 1})
    nodes.append({**nodes[0], "Alive": False})
    text = requested({"metrics": True}, "GET", "/metrics").text
    assert text.splitlines()[0] == "# http://127.0.0.1:1/metrics does not answer"
    assert len(samples(text)) == 6


def test_no_answer_of_any_node_is_a_503(requested, nodes):
    nodes[:] = [{**nodes[0], "MetricsExportPort": 1}]
    assert requested({"metrics": True}, "GET", "/metrics").status_code == 503


def test_by_default_there_is_no_such_page(requested, nodes):
    assert requested({}, "GET", "/metrics").status_code == 404


def test_who_may_not_use_the_api_sees_no_metrics(requested, nodes, tmp_path):
    file = tmp_path / "keys.yaml"
    key = new_key(file, "prometheus")
    config = {"metrics": True, "keys": {"file": str(file)}}
    assert requested(config, "GET", "/metrics").status_code == 401
    allowed = requested(config, "GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
    assert allowed.status_code == 200
    assert requested({"metrics": True}, "GET", "/metrics", peer="10.0.0.4").status_code == 403
