"""The images and the cluster that compose starts: by linter and schema, and against each other.

No image is built here. What an image installs is what the lock pins, which CI installs too.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from pasta.config import parse_config, read_yaml
from serve.calls.ray_serve import PROXY_ENV
from serve.config import ServeConfig
from tests.support.paths import ROOT

DOCKER = ROOT / "docker"
COMPOSE = DOCKER / "compose.yaml"


def compose() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())


def instructions() -> list[str]:
    """The Dockerfile's instructions, each on one line."""
    text = (DOCKER / "Dockerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def stage(name: str) -> list[str]:
    """The instructions of one stage, without its FROM."""
    lines = instructions()
    begins = [n for n, line in enumerate(lines) if line.startswith("FROM ")] + [len(lines)]
    (at,) = [n for n, begin in enumerate(begins[:-1]) if lines[begin].split()[-1] == name]
    return lines[begins[at] + 1 : begins[at + 1]]


def checked(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class TestDockerfile:
    def test_the_linter_finds_nothing(self):
        checked("hadolint", "--failure-threshold", "style", "docker/Dockerfile")

    def test_there_is_an_image_for_cpus_and_one_for_gpus(self):
        stages = [line.split()[-1] for line in instructions() if line.startswith("FROM ")]
        assert stages == ["build", "build-cpu", "build-cuda", "runtime", "cuda", "cpu"]

    def test_the_base_is_pinned_and_its_python_is_the_project_s(self):
        (base,) = [line for line in instructions() if line.startswith("ARG PYTHON=")]
        assert re.fullmatch(r"ARG PYTHON=python:3\.11\.\d+-slim-\w+", base)
        assert {line.split()[1] for line in instructions() if line.startswith("FROM ")} == {
            "${PYTHON}",
            "build",
            "runtime",
        }

    def test_everything_installed_is_pinned_by_the_lock(self):
        installs = [part for line in instructions() for part in re.findall(r"pip install [^&]*", line)]
        assert len(installs) == 6
        for install in installs:
            assert "requirements.lock" in install, install

    def test_only_the_image_for_gpus_has_torch_with_cuda(self):
        cpu, cuda = stage("build-cpu"), stage("build-cuda")
        assert "ARG TORCH_CPU_INDEX" in cpu
        assert any(line.startswith('RUN test -n "$TORCH_CPU_INDEX"') for line in cpu)
        assert any('pip install --index-url "$TORCH_CPU_INDEX"' in line for line in cpu)
        assert not any("--index-url" in line for line in cuda)
        assert "COPY --from=build-cpu /opt/venv /opt/venv" in stage("cpu")
        assert "COPY --from=build-cuda /opt/venv /opt/venv" in stage("cuda")

    def test_only_the_image_for_cpus_builds_kernels_when_it_starts(self):
        assert any("g++" in line for line in stage("runtime"))
        assert "ENV PASTA_BUILD_KERNELS=1" in stage("cpu")
        assert not any("PASTA_BUILD_KERNELS" in line for line in stage("runtime") + stage("cuda"))

    def test_no_image_loses_its_default_command(self):
        """An ENTRYPOINT takes away the CMD of the stage that it builds on."""
        made = [line.split()[0] for line in stage("runtime") if line.startswith(("ENTRYPOINT", "CMD"))]
        assert made == ["ENTRYPOINT", "CMD"]
        assert not any(line.startswith("ENTRYPOINT") for line in stage("cuda") + stage("cpu"))

    def test_it_does_not_run_as_root(self):
        assert [line for line in instructions() if line.startswith("USER ")] == ["USER 1000:1000"]

    def test_it_has_a_health_check(self):
        (check,) = [line for line in instructions() if line.startswith("HEALTHCHECK ")]
        assert "/-/healthz" in check

    @pytest.mark.parametrize(
        ("written", "asked"),
        [(None, "http://127.0.0.1:8000"), ("https://0.0.0.0:9000\n", "https://0.0.0.0:9000")],
        ids=["a node of a cluster", "a service"],
    )
    def test_the_health_check_asks_where_the_service_listens(self, tmp_path, written, asked):
        (check,) = [line for line in instructions() if line.startswith("HEALTHCHECK ")]
        address = tmp_path / "address"
        if written is not None:
            address.write_text(written)
        (tmp_path / "wget").write_text('#!/bin/sh\nfor last; do :; done; echo "$last"\n')
        (tmp_path / "wget").chmod(0o755)
        done = subprocess.run(
            json.loads(check.partition(" CMD ")[2]),
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PASTA_ADDRESS_FILE": str(address)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout, done.stderr) == (f"{asked}/-/healthz\n", "")

    def test_ray_serve_s_proxy_is_set_up_as_make_serve_does_it(self):
        (variables,) = [line for line in instructions() if line.startswith("ENV ") and "RAY_SERVE" in line]
        assert {f"{name}={value}" for name, value in PROXY_ENV.items()} <= {*variables.split()}
        assert variables.count("RAY_SERVE_") == sum(name.startswith("RAY_SERVE_") for name in PROXY_ENV)

    def test_what_it_copies_is_there_and_is_sent_to_the_builder(self):
        ignored = (ROOT / ".dockerignore").read_text().splitlines()
        assert ignored[ignored.index("*") + 1].startswith("!")
        sent = {line[1:] for line in ignored if line.startswith("!")}
        copied = set()
        for line in instructions():
            if line.startswith("COPY ") and "--from" not in line:
                copied |= set(line.split()[1:-1])
        assert {path if path in sent else path.partition("/")[0] for path in copied} == sent
        for path in copied:
            assert (ROOT / path).exists(), path

    def test_workers_find_the_project_as_jobs_do(self):
        assert any("PYTHONPATH=/srv/pasta:/srv/pasta/platform" in line for line in instructions())


class TestEntrypoint:
    """What ``docker run IMAGE …`` runs, with commands that say what they are called with."""

    @pytest.fixture
    def run(self, tmp_path):
        (line,) = [line for line in stage("runtime") if line.startswith("ENTRYPOINT ")]
        shell, script = json.loads(line.removeprefix("ENTRYPOINT "))
        assert script == "/srv/pasta/docker/entrypoint.sh"
        assert "WORKDIR /srv/pasta" in stage("runtime")
        for name, code in {"python": 0, "ray": 3, "serve": 0}.items():
            file = tmp_path / "bin" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(f'#!/bin/sh\nprintf "%s|" {name} "$@"; echo\nexit {code}\n')
            file.chmod(0o755)
        for folder in ("model", "serve"):
            (tmp_path / folder).mkdir()

        def run(*arguments, **environment):
            return subprocess.run(
                [shell, ROOT / "docker/entrypoint.sh", *arguments],
                cwd=tmp_path,
                env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", **environment},
                capture_output=True,
                text=True,
                check=False,
            )

        return run

    @pytest.mark.parametrize(
        "arguments",
        [
            ("/model",),
            ("model",),
            ("./model", "--replicas", "2"),
            ("someone/small", "--name", "two words"),
            ("--port", "9000", "/model"),
            ("--help",),
        ],
    )
    def test_a_model_is_served_as_by_python_m_serve(self, run, arguments):
        done = run(*arguments)
        assert (done.stdout, done.stderr) == ("|".join(("python", "-m", "serve", *arguments)) + "|\n", "")

    def test_the_default_is_the_shipped_model(self, run):
        (line,) = [line for line in stage("runtime") if line.startswith("CMD ")]
        (model,) = json.loads(line.removeprefix("CMD "))
        assert (ROOT / model / "config.json").exists()
        assert run(model).stdout == f"python|-m|serve|{model}|\n"

    @pytest.mark.parametrize(
        "arguments",
        [
            ("ray", "start", "--block", "--address=head:6379"),
            ("python", "-m", "jobs.sft", "--config", "a b"),
            # A folder of the image has the same name.
            ("serve", "deploy", "--address", "http://head:8265", "/etc/pasta/serve.yaml"),
        ],
    )
    def test_another_command_runs_as_it_stands(self, run, arguments):
        assert run(*arguments).stdout == "|".join(arguments) + "|\n"

    def test_a_shell_runs_as_it_stands(self, run):
        assert run("sh", "-c", 'echo "$HOME of $0"', "me", HOME="/home").stdout == "/home of me\n"
        assert run("/bin/sh", "-c", "exit 7").returncode == 7

    def test_a_command_s_exit_code_is_the_container_s(self, run):
        assert run("ray", "stop").returncode == 3

    def test_kernels_are_built_first_where_the_image_says_so(self, run):
        done = run("ray", "start", PASTA_BUILD_KERNELS="1")
        assert done.stdout.splitlines() == ["python|-m|jobs.kernels|", "ray|start|"]

    def test_commands_of_the_cluster_s_services_are_commands(self, run):
        for service in ("head", "worker", "serve"):
            command = compose()["services"][service]["command"].split()
            assert run(*command).stdout == "|".join(command) + "|\n"


class TestCompose:
    def test_it_fits_the_specification(self):
        checked(
            *("check-jsonschema", "--builtin-schema", "vendor.compose-spec"),
            *("docker/compose.yaml", "docker/compose.gpu.yaml"),
        )

    def test_every_file_it_mounts_is_there(self):
        config = compose()
        files = [entry["file"] for entry in config["configs"].values()]
        for service in config["services"].values():
            files += [v.partition(":")[0] for v in service.get("volumes", []) if v.startswith(".")]
        for file in files:
            # Boards are put there by whoever has some.
            assert (DOCKER / file).exists(), file

    def test_every_secret_and_volume_is_declared_and_no_secret_is_in_the_repository(self):
        config = compose()
        services = config["services"].values()
        assert {name for s in services for name in s.get("secrets", [])} == set(config["secrets"])
        named = {v.partition(":")[0] for s in services for v in s.get("volumes", []) if not v.startswith(".")}
        assert named == set(config["volumes"])
        for secret in config["secrets"].values():
            assert secret["file"].startswith("./secrets/")
        assert "/docker/secrets/" in (ROOT / ".gitignore").read_text().splitlines()

    def test_ports_are_open_to_this_machine_alone(self):
        ports = [port for s in compose()["services"].values() for port in s.get("ports", [])]
        assert len(ports) == 4
        assert all(str(port).startswith("127.0.0.1:") for port in ports)

    def test_images_are_pinned_and_no_service_can_gain_rights(self):
        for name, service in compose()["services"].items():
            assert re.fullmatch(r"pasta:cpu|\S+:v?\d+\.\d+\.\d+", service["image"]), name
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]

    def test_what_others_wait_for_says_when_it_is_healthy(self):
        services = compose()["services"]
        for service in services.values():
            for name, condition in service.get("depends_on", {}).items():
                assert condition == {"condition": "service_healthy"}
                assert "test" in services[name]["healthcheck"]

    def test_all_ray_nodes_ask_for_the_token(self):
        for name in ("head", "worker", "serve"):
            environment = compose()["services"][name]["environment"]
            assert environment["RAY_AUTH_MODE"] == "token"
            assert environment["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray_token"

    @pytest.mark.parametrize("file", ["docker/compose.yaml", "docs/kubernetes.md"])
    def test_whoever_follows_the_guide_names_the_index_before_images_are_built(self, file):
        text = (ROOT / file).read_text()
        assert "TORCH_CPU_INDEX" in compose()["services"]["head"]["build"]["args"]
        _, _, after_secrets = text.partition("mkdir -p docker/secrets")
        assert "export TORCH_CPU_INDEX=" in after_secrets.partition("up --build")[0]

    def test_the_gpu_file_changes_workers_and_what_is_served(self):
        changed = yaml.safe_load((DOCKER / "compose.gpu.yaml").read_text())
        assert {key: set(values) for key, values in changed.items()} == {
            "services": {"worker"},
            "configs": {"serve"},
        }
        assert changed["services"]["worker"]["image"] == "pasta:cuda"

    def test_a_second_worker_cannot_claim_the_gpus_again(self):
        """Compose refuses to scale a service whose container has a name."""
        worker = yaml.safe_load((DOCKER / "compose.gpu.yaml").read_text())["services"]["worker"]
        (devices,) = worker["deploy"]["resources"]["reservations"]["devices"]
        assert devices["count"] == "all"
        assert worker["container_name"]

    def test_on_gpus_each_decoder_takes_one(self):
        changed = yaml.safe_load((DOCKER / "compose.gpu.yaml").read_text())
        served, plain = (
            read_yaml(DOCKER / changed["configs"]["serve"]["file"]),
            read_yaml(DOCKER / "serve.yaml"),
        )
        parse_config(served, ServeDeploySchema, "docker/serve.gpu.yaml")
        ours, theirs = (
            parse_config(config["applications"][0].pop("args"), ServeConfig, "args")
            for config in (served, plain)
        )
        assert (ours.decoder.num_gpus, ours.decoder.num_replicas) == (1, 1)
        assert ours.decoder.max_surge_percent == 0
        assert {model.device for model in ours.models.values()} == {"cuda"}
        # All else is what is served without GPUs.
        models = {name: model.model_copy(update={"device": "auto"}) for name, model in ours.models.items()}
        assert ours.model_copy(update={"models": models, "decoder": theirs.decoder}) == theirs
        assert served == plain

    def test_it_serves_what_make_serve_does(self):
        served, local = read_yaml(DOCKER / "serve.yaml"), read_yaml(ROOT / "configs/serve/local.yaml")
        parse_config(served, ServeDeploySchema, "docker/serve.yaml")
        ours, theirs = (
            parse_config(config["applications"][0]["args"], ServeConfig, "args") for config in (served, local)
        )
        # Here others can reach it.
        secret = ours.keys.file.removeprefix("/run/secrets/")
        assert secret in compose()["services"]["worker"]["secrets"]
        assert (ours.front.proxy, theirs.front.proxy) == ("ray", "none")  # of a cluster, and of one machine
        assert ours.model_copy(update={"keys": theirs.keys, "front": theirs.front}) == theirs
        assert served["http_options"] == {"host": "0.0.0.0", "port": 8000}


class TestMonitoring:
    def test_prometheus_asks_ray_for_its_nodes_with_the_token(self):
        config = read_yaml(DOCKER / "prometheus/prometheus.yml")
        (job,) = config["scrape_configs"]
        (discovery,) = job["http_sd_configs"]
        assert discovery["url"] == "http://head:8265/api/prometheus/sd"
        secret = discovery["authorization"]["credentials_file"].removeprefix("/run/secrets/")
        assert secret in compose()["services"]["prometheus"]["secrets"]

    def test_grafana_reads_prometheus_and_the_boards(self):
        provisioning = DOCKER / "grafana/provisioning"
        (source,) = read_yaml(provisioning / "datasources/prometheus.yaml")["datasources"]
        assert (source["uid"], source["url"]) == ("prometheus", "http://prometheus:9090")
        (provider,) = read_yaml(provisioning / "dashboards/pasta.yaml")["providers"]
        volumes = compose()["services"]["grafana"]["volumes"]
        assert f"./grafana/pasta.json:{provider['options']['path']}/pasta.json:ro" in volumes


@pytest.mark.parametrize("name", ["local", "gpu", "gpu-70b"])
def test_a_shipped_service_can_be_read(name):
    from serve.launch import read_service_config

    config = read_service_config(ROOT / f"configs/serve/{name}.yaml")
    assert config.host == "127.0.0.1"


def test_the_gpu_configuration_puts_a_decoder_on_each_gpu():
    from serve.launch import read_service_config

    config = read_service_config(ROOT / "configs/serve/gpu.yaml").args
    assert config.decoder.num_gpus == 1
    assert config.decoder.num_replicas > 1
    assert all(model.device == "cuda" and Path(model.path).is_absolute() for model in config.models.values())


def test_the_configuration_of_a_70b_fits_its_gpus():
    """Weights and caches leave each GPU of 80 GB a tenth for activations; a node of eight GPUs holds all replicas."""
    from serve.launch import read_service_config

    config = read_service_config(ROOT / "configs/serve/gpu-70b.yaml").args
    layers, hidden, inner, heads, kv_heads, vocabulary = 80, 8192, 28672, 64, 8, 128256
    parallel = config.decoder.tensor_parallel
    assert kv_heads % parallel == 0
    per_layer = 2 * hidden**2 * (heads + kv_heads) // heads + 3 * hidden * inner
    weights = 2 * ((layers * per_layer + hidden * vocabulary) / parallel + hidden * vocabulary)
    token = 2 * layers * kv_heads * (hidden // heads) * 2 / parallel
    cache = config.engine.num_slots * config.engine.slot_tokens * token
    assert token == 80 * 1024
    assert 0.7 * 80e9 < weights + cache < 0.9 * 80e9
    assert config.decoder.num_replicas * parallel * config.decoder.num_gpus <= 8


def test_the_slots_that_sizing_counts_with_fit_as_the_configuration_and_the_guide_say():
    """One model's cache takes 3.5 times the other's a token: both leave the H200 a tenth."""
    from serve.launch import read_service_config

    simulated = read_yaml(ROOT / "configs/simulate/h200-llama-3.1-8b.yaml")
    costs, engine = simulated["costs"]["roofline"], simulated["engine"]
    llama = 2 * costs["bytes_per_value"] * costs["layers"] * costs["kv_heads"] * costs["head_dim"]
    served = read_service_config(ROOT / "configs/serve/gpu.yaml").args.engine
    gemma = 2 * 2 * 28 * 16 * 256
    assert (llama, gemma) == (128 * 1024, 448 * 1024)
    llama_cache = engine["num_slots"] * engine["slot_tokens"] * llama
    gemma_cache = served.num_slots * served.slot_tokens * gemma
    assert (llama_cache, gemma_cache) == (64 * 2**30, 84 * 2**30)
    assert llama_cache + 2 * costs["parameters"] < 0.9 * costs["memory_bytes"]
    assert gemma_cache + 2 * 8.54e9 < 0.9 * costs["memory_bytes"]
    for file in ("configs/serve/gpu.yaml", "docs/sizing.md"):
        text = (ROOT / file).read_text()
        assert all(figure in text for figure in ("64 GiB", "84 GiB", "128 KiB", "448 KiB"))


def test_several_front_replicas_are_two_comments_away():
    text = (ROOT / "configs/serve/gpu.yaml").read_text()
    for line in ("gateways: 2", "interpreters: 2"):
        assert f"# {line}\n" in text
        text = text.replace(f"# {line}\n", f"{line}\n")
    front = parse_config(yaml.safe_load(text)["applications"][0]["args"], ServeConfig, "args").front
    assert (front.gateways, front.interpreters) == (2, 2)
