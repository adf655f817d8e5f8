"""The manifests for Kubernetes: pods by Kubernetes' own schema, KubeRay's part by a strict schema of our own.

No Kubernetes runs here: that KubeRay takes them is not tested.
"""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from jobs import pipeline
from pasta.config import parse_config, read_yaml
from serve.config import ServeConfig
from serve.interpreter.dispatch import NO_REPLICA_S
from tests.docker.kuberay_schema import KINDS
from tests.support.paths import ROOT

MANIFESTS = sorted((ROOT / "docker/kuberay").glob("*.yaml"))
KUBERNETES = "1.33"


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


RAY = [
    pytest.param(document, id=path.stem)
    for path in MANIFESTS
    for document in documents(path)
    if document["apiVersion"] == "ray.io/v1"
]


def cluster_of(document: dict[str, Any]) -> dict[str, Any]:
    key = KINDS[document["kind"]][1]
    return document["spec"] if key is None else document["spec"][key]


def groups(document: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = cluster_of(document)
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [group["template"]["spec"] for group in groups(document)]


def manifest(kind: str) -> dict[str, Any]:
    (found,) = [document for path in MANIFESTS for document in documents(path) if document["kind"] == kind]
    return found


def test_there_is_one_manifest_for_each_of_kuberay_s_kinds():
    kinds = [document["kind"] for path in MANIFESTS for document in documents(path)]
    assert sorted(kinds) == ["PersistentVolumeClaim", "RayCluster", "RayJob", "RayService"]


def test_no_two_have_a_name_that_their_services_would_share():
    names = [document["metadata"]["name"] for path in MANIFESTS for document in documents(path)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_what_is_kubernetes_own_fits_its_schema(path):
    for document in documents(path):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])
        if document["apiVersion"] != "ray.io/v1":
            kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("document", RAY)
def test_the_fields_are_kuberay_s(document):
    assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
    jsonschema.Draft202012Validator(KINDS[document["kind"]][0]).validate(document["spec"])


@pytest.mark.parametrize("document", RAY)
def test_every_pod_fits_kubernetes_schema(document):
    for group in groups(document):
        template = group["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_a_misspelt_field_would_be_found():
    document = manifest("RayCluster")
    document["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        test_every_pod_fits_kubernetes_schema(document)
    document["spec"]["autoscalerOptions"]["idleTimeout"] = 5
    with pytest.raises(jsonschema.ValidationError):
        test_the_fields_are_kuberay_s(document)


@pytest.mark.parametrize("document", RAY)
def test_ray_s_version_is_the_project_s(document):
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["serve"]
    assert f"ray[serve]=={cluster_of(document)['rayVersion']}" in pins


@pytest.mark.parametrize("document", RAY)
def test_no_pod_runs_as_root_or_can_become_it(document):
    for pod in pods(document):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 1000
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("document", RAY)
def test_every_pod_has_an_image_resources_and_the_shared_runs(document):
    for pod in pods(document):
        (container,) = pod["containers"]
        assert container["image"] in ("pasta:cpu", "pasta:cuda")
        assert container["resources"]["requests"] == container["resources"]["limits"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts["runs"] == "/srv/pasta/runs"
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert mounts.keys() == volumes.keys()
        claim = manifest("PersistentVolumeClaim")
        assert volumes["runs"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("document", RAY)
def test_secrets_are_named_and_never_written_down(document):
    assert cluster_of(document)["authOptions"] == {"mode": "token", "secretName": "pasta-ray-token"}
    for pod in pods(document):
        for container in pod["containers"]:
            assert "env" not in container
            assert [source["secretRef"]["name"] for source in container["envFrom"]] == ["pasta-environment"]


@pytest.mark.parametrize("document", RAY)
def test_workers_come_and_go_by_the_autoscaler(document):
    cluster = cluster_of(document)
    assert cluster["enableInTreeAutoscaling"] is True
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert group["minReplicas"] < group["maxReplicas"]
    # Autoscaler v2 replaces pods itself.
    assert {pod["restartPolicy"] for pod in pods(document)} == {"Never"}


@pytest.mark.parametrize("document", RAY)
def test_only_the_gpu_group_asks_for_gpus_and_may_go_where_they_are(document):
    for group in groups(document):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        wants_gpu = "nvidia.com/gpu" in container["resources"]["limits"]
        assert wants_gpu == (group.get("groupName") == "gpu") == (container["image"] == "pasta:cuda")
        assert wants_gpu == bool(pod.get("tolerations"))


def test_the_pipeline_s_command_is_one_that_the_job_takes():
    spec = manifest("RayJob")["spec"]
    python, option, module, *arguments = shlex.split(spec["entrypoint"])
    assert (python, option, module) == ("python", "-m", "jobs.pipeline")
    options = pipeline.parser().parse_args(arguments)
    config, steps = pipeline.read_recipe(options)
    assert pipeline.read_stages(config, steps)
    assert not Path(options.config).is_absolute()
    # The head has no CPUs: a driver that reserves nothing would run there.
    assert spec["entrypointNumCpus"] >= 1
    assert spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_service_is_that_of_the_gpu_configuration_open_to_the_cluster():
    served = yaml.safe_load(manifest("RayService")["spec"]["serveConfigV2"])
    assert served["http_options"].pop("host") == "0.0.0.0"
    ours = read_yaml(ROOT / "configs/serve/gpu.yaml")
    assert ours["http_options"].pop("host") == "127.0.0.1"
    assert served == ours


def test_every_node_that_may_hold_a_gateway_has_the_keys():
    document = manifest("RayService")
    served = yaml.safe_load(document["spec"]["serveConfigV2"])["applications"][0]["args"]
    directory, _, _ = parse_config(served, ServeConfig, "serveConfigV2").keys.file.rpartition("/")
    for pod in pods(document):
        (container,) = pod["containers"]
        assert {"name": "api-keys", "mountPath": directory, "readOnly": True} in container["volumeMounts"]
        assert {"name": "api-keys", "secret": {"secretName": "pasta-api-keys"}} in pod["volumes"]


def test_the_service_s_nodes_hold_its_decoders():
    document = manifest("RayService")
    served = yaml.safe_load(document["spec"]["serveConfigV2"])["applications"][0]["args"]
    decoder = parse_config(served, ServeConfig, "serveConfigV2").decoder
    (group,) = [group for group in cluster_of(document)["workerGroupSpecs"] if group["groupName"] == "gpu"]
    (container,) = group["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    # All processes of a replica are on one node.
    assert decoder.tensor_parallel * decoder.num_gpus <= limits["nvidia.com/gpu"]
    assert decoder.tensor_parallel * decoder.num_cpus <= float(limits["cpu"])
    at_most = decoder.max_replicas * (1 + decoder.max_surge_percent / 100)
    assert (
        at_most * decoder.tensor_parallel * decoder.num_gpus
        <= group["maxReplicas"] * limits["nvidia.com/gpu"]
    )
    assert {"name": "serve", "containerPort": 8000} in container["ports"]


def test_only_nodes_without_a_gpu_hold_gateway_and_interpreter():
    document = manifest("RayService")
    served = yaml.safe_load(document["spec"]["serveConfigV2"])["applications"][0]["args"]
    front = parse_config(served, ServeConfig, "serveConfigV2").front
    offered = {}
    for group in groups(document):
        # KubeRay writes the value on the command line of ray start.
        given = "".join(shlex.split(group["rayStartParams"].get("resources", "{}")))
        offered[group.get("groupName", "head")] = json.loads(given)
    assert offered == {"head": {}, "cpu": {"front": 1}, "gpu": {}}
    assert all(2 * amount <= offered["cpu"][name] for name, amount in front.resources.items())
    (cpu,) = [group for group in groups(document) if group.get("groupName") == "cpu"]
    assert cpu["minReplicas"] >= 1
    assert 2 * front.num_cpus <= float(cpu["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])


def test_clients_reach_front_nodes_alone():
    """A connection through a GPU node's proxy would break when that node dies.

    KubeRay's service selects the pods of the cluster that has the traffic, the head's aside, and of those Kubernetes
    takes the ready ones: a pod with a readiness gate that nobody opens never is.
    """
    document = manifest("RayService")
    assert document["spec"]["excludeHeadPodFromServeSvc"] is True
    head, *workers = groups(document)
    reached = [g["groupName"] for g in workers if not g["template"]["spec"].get("readinessGates")]
    assert reached == ["cpu"]
    # KubeRay takes the port from the head, and sends to the same number of each pod.
    served = yaml.safe_load(document["spec"]["serveConfigV2"])
    for group in (head, workers[0]):
        (container,) = group["template"]["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["serve"] == served["http_options"]["port"]
    guide = (ROOT / "docs/kubernetes.md").read_text()
    assert f"port-forward service/{document['metadata']['name']}-serve-svc 8000:8000" in guide


def test_no_service_of_our_own_mixes_two_clusters():
    """During an upgrade there are two of equal labels. Only KubeRay knows, and sets, which one has the traffic."""
    assert not [d for path in MANIFESTS for d in documents(path) if d["kind"] == "Service"]


def test_a_cluster_is_kept_until_its_requests_have_ended():
    spec = manifest("RayService")["spec"]
    assert spec["upgradeStrategy"]["type"] == "NewCluster"
    for pod in pods(manifest("RayService")):
        assert pod["terminationGracePeriodSeconds"] <= spec["rayClusterDeletionDelaySeconds"]


def test_the_guide_says_for_how_long_requests_wait_where_no_decoder_is_left():
    guide = " ".join((ROOT / "docs/kubernetes.md").read_text().split())
    assert NO_REPLICA_S == 30.0
    assert "where no Decoder is left, for half a minute; if its successor still loads then" in guide
