"""The part of KubeRay's ``ray.io/v1`` that the manifests use, as JSON Schema, by hand.

KubeRay's own schemas are in no package for Python, Debian or Node: names and types are those of its API reference
(v1.6), and a field that is not written down here is refused. Pod templates are not in it: they are checked against
Kubernetes' own schema.
"""

from typing import Any

Schema = dict[str, Any]


def _object(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_STRING: Schema = {"type": "string", "minLength": 1}
_BOOLEAN: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_POSITIVE: Schema = {"type": "integer", "minimum": 1}
_STRINGS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_QUANTITIES: Schema = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}
#: Checked as a Pod.
_TEMPLATE: Schema = _object(("metadata", "spec"), metadata={"type": "object"}, spec={"type": "object"})

CLUSTER_SPEC = _object(
    ("rayVersion", "headGroupSpec", "workerGroupSpecs"),
    rayVersion=_STRING,
    authOptions=_object(("mode",), mode={"enum": ["disabled", "token"]}, secretName=_STRING),
    enableInTreeAutoscaling=_BOOLEAN,
    autoscalerOptions=_object(
        (),
        version={"enum": ["v1", "v2"]},
        upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
        idleTimeoutSeconds=_COUNT,
        resources=_object((), requests=_QUANTITIES, limits=_QUANTITIES),
        securityContext={"type": "object"},
    ),
    headGroupSpec=_object(
        ("rayStartParams", "template"), rayStartParams=_STRINGS, template=_TEMPLATE, serviceType=_STRING
    ),
    workerGroupSpecs={
        "type": "array",
        "items": _object(
            ("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"),
            groupName=_STRING,
            replicas=_COUNT,
            minReplicas=_COUNT,
            maxReplicas=_POSITIVE,
            rayStartParams=_STRINGS,
            template=_TEMPLATE,
        ),
    },
)

JOB_SPEC = _object(
    ("entrypoint", "rayClusterSpec"),
    entrypoint=_STRING,
    entrypointNumCpus={"type": "number"},
    entrypointNumGpus={"type": "number"},
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    backoffLimit=_COUNT,
    activeDeadlineSeconds=_POSITIVE,
    shutdownAfterJobFinishes=_BOOLEAN,
    ttlSecondsAfterFinished=_COUNT,
    runtimeEnvYAML=_STRING,
    metadata=_STRINGS,
    rayClusterSpec=CLUSTER_SPEC,
)

SERVICE_SPEC = _object(
    ("serveConfigV2", "rayClusterConfig"),
    upgradeStrategy=_object((), type={"enum": ["NewCluster", "None"]}),
    rayClusterDeletionDelaySeconds=_COUNT,
    excludeHeadPodFromServeSvc=_BOOLEAN,
    serveConfigV2=_STRING,
    rayClusterConfig=CLUSTER_SPEC,
)

#: Of each kind: the schema of its specification, and where in it the cluster's is.
KINDS: dict[str, tuple[Schema, str | None]] = {
    "RayCluster": (CLUSTER_SPEC, None),
    "RayJob": (JOB_SPEC, "rayClusterSpec"),
    "RayService": (SERVICE_SPEC, "rayClusterConfig"),
}
