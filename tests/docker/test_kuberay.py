"""What must hold of the manifests for Kubernetes.

They were checked against published schemas by hand (see docker/README.md); here stand the fields
of `ray.io/v1` that they may use.
"""

import shlex
from typing import Any

import pytest
import yaml
from compose_file import COMPOSE as COMPOSE_FILE
from compose_file import DOCKER, read_compose
from helpers.documents import unknown_options

MANIFEST = [*yaml.safe_load_all((DOCKER / "kuberay.yaml").read_text())]
SEARCH = yaml.safe_load((DOCKER / "kuberay-search.yaml").read_text())
COMPOSE = read_compose(COMPOSE_FILE)["services"]

CLUSTER_FIELDS = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
HEAD_FIELDS = {"rayStartParams", "template"}
WORKER_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", *HEAD_FIELDS}
JOB_FIELDS = {"clusterSelector", "entrypoint", "backoffLimit", "submitterConfig"}


def found(kind: str, name: str) -> dict[str, Any]:
    [one] = [d for d in MANIFEST if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    assert isinstance(one, dict)
    return one


CLUSTER = found("RayCluster", "tune-speed")["spec"]
PODS: dict[str, dict[str, Any]] = {
    "postgres": found("StatefulSet", "postgres")["spec"]["template"]["spec"],
    "mlflow": found("Deployment", "mlflow")["spec"]["template"]["spec"],
    "head": CLUSTER["headGroupSpec"]["template"]["spec"],
    **{group["groupName"]: group["template"]["spec"] for group in CLUSTER["workerGroupSpecs"]},
    "submitter": SEARCH["spec"]["submitterPodTemplate"]["spec"],
}


@pytest.fixture(params=PODS)
def pod(request: pytest.FixtureRequest) -> dict[str, Any]:
    return PODS[request.param]


def test_cluster_has_known_fields_only() -> None:
    assert set(CLUSTER) == CLUSTER_FIELDS
    assert set(CLUSTER["headGroupSpec"]) == HEAD_FIELDS
    assert all(set(group) == WORKER_FIELDS for group in CLUSTER["workerGroupSpecs"])
    groups = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]
    parameters = [value for group in groups for value in group["rayStartParams"].values()]
    assert all(isinstance(value, str) for value in parameters)


def test_parameters_are_options_of_ray_start() -> None:
    for group in [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]:
        options = [f"--{name}" for name in group["rayStartParams"]]
        assert unknown_options(["ray", "start", *options]) == []


def test_cluster_asks_for_a_token() -> None:
    assert CLUSTER["authOptions"] == {"mode": "token"}
    assert "RAY_AUTH_MODE" not in str(PODS)  # KubeRay sets it, and would not over ours.


def test_search_runs_on_that_cluster() -> None:
    spec = SEARCH["spec"]
    assert set(spec) == {*JOB_FIELDS, "submitterPodTemplate"}
    assert spec["clusterSelector"] == {"ray.io/cluster": "tune-speed"}
    assert spec["backoffLimit"] == 0  # KubeRay refuses others with a cluster that is not the job's.
    words = shlex.split(spec["entrypoint"])
    assert words[:2] == ["tune-speed", "search"] and unknown_options(words) == []


def test_everything_is_in_one_namespace() -> None:
    assert all(
        one["metadata"].get("namespace") == "tune-speed"
        for one in [*MANIFEST, SEARCH]
        if one["kind"] != "Namespace"
    )


def test_pod_runs_as_no_root_and_may_do_little(pod: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True and context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_pod_has_resources_and_a_pinned_image(pod: dict[str, Any]) -> None:
    [container] = pod["containers"]
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert container["resources"]["limits"]["memory"]
    assert container["image"] in {"tune-speed:cpu", "tune-speed:cuda", COMPOSE["postgres"]["image"]}
    if container["image"].startswith("tune-speed"):
        assert pod["securityContext"]["runAsUser"] == 10001


@pytest.mark.parametrize("name", [name for name in PODS if name != "submitter"])
def test_service_has_both_probes(name: str) -> None:
    [container] = PODS[name]["containers"]
    assert {"readinessProbe", "livenessProbe"} <= set(container)


def test_what_is_mounted_is_there(pod: dict[str, Any]) -> None:
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    claims = {one["metadata"]["name"] for one in MANIFEST if one["kind"].endswith("VolumeClaim")}
    mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts - set(volumes) <= {"data"} and set(volumes) <= mounts
    named = [v["persistentVolumeClaim"] for v in volumes.values() if "persistentVolumeClaim" in v]
    assert {claim["claimName"] for claim in named} <= claims


def test_mlflow_is_started_as_in_the_composition() -> None:
    assert PODS["mlflow"]["containers"][0]["args"] == COMPOSE["mlflow"]["command"]


def test_ray_is_asked_after_as_in_the_composition() -> None:
    check = COMPOSE["worker"]["healthcheck"]["test"][1:]
    for name in ("head", "cpu", "cuda"):
        [container] = PODS[name]["containers"]
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["exec"]["command"] == check


def test_two_workers_never_share_a_machine() -> None:
    """Their trials could not take turns to measure: the turnstile is the pod's own."""
    for group in CLUSTER["workerGroupSpecs"]:
        rules = group["template"]["spec"]["affinity"]["podAntiAffinity"]
        [rule] = rules["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        labels = group["template"]["metadata"]["labels"]
        assert rule["labelSelector"]["matchLabels"] == labels


def test_no_service_is_reached_from_outside() -> None:
    services = [one["spec"] for one in MANIFEST if one["kind"] == "Service"]
    assert services and all("type" not in spec for spec in services)
    guarded = [one for one in MANIFEST if one["kind"] == "NetworkPolicy"]
    assert {one["spec"]["podSelector"]["matchLabels"]["app"] for one in guarded} == {
        "postgres",
        "mlflow",
    }


def test_no_secret_stands_in_the_manifest() -> None:
    assert not any(one["kind"] == "Secret" for one in MANIFEST)
    for pod in PODS.values():
        for variable in pod["containers"][0].get("env", ()):
            is_file = variable["value"].startswith("/run/secrets/")
            assert is_file or not any(w in variable["name"] for w in ("PASSWORD", "TOKEN"))
