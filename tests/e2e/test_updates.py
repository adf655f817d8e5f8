"""``serve deploy`` to a cluster in use: a new model without a failed request, and as many decoders as work needs."""

import concurrent.futures
import json
import threading

import httpx
import pytest
import yaml

from serve.ray_start import free_port
from tests.support.cluster import BIN, ray_head
from tests.support.service import save_tiny_model, service_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(600)
MODEL = "pasta-atlas"
PROMPTS = ["Tell me about France", "Count to ten", "x", "Name each planet in turn"]
SCALING = {
    "min_replicas": 1,
    "max_replicas": 2,
    "target_lanes": 2.0,
    "upscale_delay_s": 0.0,
    "downscale_delay_s": 0.0,
}


class Service:
    """What runs on the cluster."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder, self.port = cluster, folder, free_port()
        self.models = {seed: save_tiny_model(folder / f"model-{seed}", seed=seed) for seed in (0, 1)}
        self.endless = save_tiny_model(folder / "endless", endless=True)

    def deploy(self, model, **args):
        """``serve deploy``, as a user says it, until it has happened."""
        file = service_config(self.folder, model, drain_timeout_s=60.0, **args)
        config = yaml.safe_load(file.read_text())
        config["http_options"]["port"] = self.port
        file.write_text(yaml.safe_dump(config))
        done = self.cluster.run(BIN / "serve", "deploy", file)
        assert done.returncode == 0, done.stdout + done.stderr
        self.wait_for(lambda: self.status()["status"] == "RUNNING")

    def status(self):
        details = self.cluster.get("/api/serve/applications/")["applications"].get(
            "pasta", {"status": "NONE"}
        )
        assert details["status"] not in ("DEPLOY_FAILED", "UNHEALTHY"), details
        return details

    def num_decoders(self):
        replicas = self.status()["deployments"]["Decoder"]["replicas"]
        return sum(replica["state"] == "RUNNING" for replica in replicas)

    def wait_for(self, condition, timeout_s=240):
        assert eventually(condition, timeout_s, every_s=0.2), json.dumps(self.status(), indent=1)[:4000]

    def client(self):
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("updates")
    environment = {"RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1", "RAY_worker_niceness": "0"}
    with ray_head(folder / "log", num_cpus=4, **environment) as cluster:
        yield Service(cluster, folder)


def body(prompt, **fields):
    messages = [{"role": "user", "content": prompt}]
    pasta = {"promise_bias": 7.0, "placement": "spread"}
    return {"model": MODEL, "messages": messages, "max_tokens": 120, "pasta": pasta, **fields}


def whole(http, prompt, **fields):
    answer = http.post("/v1/chat/completions", json=body(prompt, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def streamed(http, prompt):
    pieces = []
    with http.stream("POST", "/v1/chat/completions", json=body(prompt, stream=True)) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                pieces.append(chunk["choices"][0]["delta"].get("content") or "")
    assert line == "data: [DONE]" or not line
    return "".join(pieces)


def test_a_new_model_is_deployed_without_a_failed_request(service):
    service.deploy(service.models[0])
    with service.client() as http:
        old = {prompt: whole(http, prompt) for prompt in PROMPTS}
    updated, seen = threading.Event(), []

    def load(number):
        ask = streamed if number % 2 else whole
        with service.client() as http:
            last = False
            while not last:
                last = updated.is_set()  # one more after the update
                prompt = PROMPTS[(number + len(seen)) % len(PROMPTS)]
                seen.append((prompt, ask(http, prompt)))

    # One who streams and one who does not: the cores are for the new model's Decoders.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        users = [pool.submit(load, number) for number in range(2)]
        try:
            service.deploy(service.models[1])
        finally:
            updated.set()
        for user in users:
            user.result()  # nobody was refused and no answer broke off
    with service.client() as http:
        new = {prompt: whole(http, prompt) for prompt in PROMPTS}
    assert all(old[prompt] != new[prompt] for prompt in PROMPTS)
    assert all(text in (old[prompt], new[prompt]) for prompt, text in seen), "no answer is of both models"
    assert {text in old.values() for _, text in seen} == {True, False}


def test_decoders_come_with_lanes_in_use_and_go_without(service):
    decoder = {"num_replicas": 1, "autoscaling": SCALING, "lease_s": 5.0}
    service.deploy(service.endless, decoder=decoder)
    service.wait_for(lambda: service.num_decoders() == 1)
    grown = threading.Event()

    def load():
        with service.client() as http:
            while not grown.is_set():
                whole(http, "Tell me about France", max_tokens=2000)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        users = [pool.submit(load) for _ in range(4)]
        try:
            service.wait_for(lambda: service.num_decoders() == 2)
        finally:
            grown.set()
        for user in users:
            user.result()
    service.wait_for(lambda: service.num_decoders() == 1)
