"""The overlays of kubernetes/, built by kustomize, against the schemas of Kubernetes, and what they say of the image.

No package has schemas of Prometheus' and Ray's own kinds: of these the tests look at what opbox needs, by hand.
"""

from __future__ import annotations

import copy
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from opbox_service.settings import Settings
from tests.docker.test_files import DOCKERFILE, ROOT, run, yaml

pytestmark = pytest.mark.compose

OVERLAYS = {"single": "StatefulSet", "gpu": "StatefulSet", "cluster": "RayCluster"}
"""Each overlay, and the kind of what runs in it."""
TAGS = {"single": "cpu", "gpu": "cuda", "cluster": "cluster"}
UNKNOWN = {"ServiceMonitor", "PodMonitor", "RayCluster"}
"""Kinds that Kubernetes itself does not have."""
FOLDER = ROOT / "kubernetes"
NAME = {"app.kubernetes.io/name": "opbox"}


@cache
def built(overlay: str) -> list[dict[str, Any]]:
    """The resources of an overlay, by kustomize or by kubectl's."""
    if shutil.which("kustomize") is not None:
        command = ["kustomize", "build"]
    elif shutil.which("kubectl") is not None:
        command = ["kubectl", "kustomize"]
    else:
        pytest.skip("no kustomize on this machine")
    from ruamel.yaml import YAML

    done = run(*command, FOLDER / "overlays" / overlay)
    assert done.returncode == 0, done.stderr
    return list(YAML(typ="safe").load_all(done.stdout))


def one(overlay: str, kind: str) -> dict[str, Any]:
    """The only resource of a kind."""
    [resource] = [resource for resource in built(overlay) if resource["kind"] == kind]
    return resource


def templates(overlay: str) -> list[dict[str, Any]]:
    """The templates of the pods that run opbox."""
    spec = one(overlay, OVERLAYS[overlay])["spec"]
    if OVERLAYS[overlay] == "StatefulSet":
        return [spec["template"]]
    return [group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def check(resource: dict[str, Any]) -> None:
    """Raise an error where a resource is none of Kubernetes'."""
    import kubernetes_validate

    kubernetes_validate.validate(resource, "1.37", strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_resources_agree_with_kubernetes(overlay: str) -> None:
    kinds = {resource["kind"] for resource in built(overlay)}
    assert {OVERLAYS[overlay], "Service", "NetworkPolicy", "PodDisruptionBudget"} <= kinds
    for resource in built(overlay):
        if resource["kind"] not in UNKNOWN:
            check(resource)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_agree_with_kubernetes_in_whatever_kind_they_are(overlay: str) -> None:
    for template in templates(overlay):
        spec = {"selector": {"matchLabels": NAME}, "template": template}
        check({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec})
        wrong = copy.deepcopy(spec)
        wrong["template"]["spec"]["containers"][0]["readOnlyFilesystem"] = True  # type: ignore[index]
        with pytest.raises(Exception, match="readOnlyFilesystem"):
            check({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": wrong})


def test_files_are_all_used() -> None:
    for file in FOLDER.rglob("kustomization.yaml"):
        document = yaml(file)
        used = {*document["resources"], *(patch["path"] for patch in document.get("patches", []) if "path" in patch)}
        assert {path.name for path in file.parent.glob("*.yaml")} - {"kustomization.yaml"} <= used
        assert all((file.parent / name).exists() for name in used)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_can_do_no_more_than_it_must(overlay: str) -> None:
    user = re.search(r"(?m)^USER (\d+)$", DOCKERFILE.read_text("utf-8"))
    assert user is not None
    for template in templates(overlay):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == int(user[1])
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        [container] = spec["containers"]
        context = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == context
        assert "memory" in container["resources"]["limits"]
        assert container["image"] == f"registry.example.org/opbox:{TAGS[overlay]}"
        for volume in spec["volumes"]:
            assert len({"emptyDir", "secret", "persistentVolumeClaim"} & volume.keys()) == 1


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_the_image_writes_to_is_mounted(overlay: str) -> None:
    image = DOCKERFILE.read_text("utf-8")
    folders = [*re.findall(r"(?:OPBOX_STATE_DIR|CUPY_CACHE_DIR)=(\S+)", image), "/tmp/x"]
    assert len(folders) == 3
    for template in templates(overlay):
        [container] = template["spec"]["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        for folder in folders:
            assert any(Path(folder).is_relative_to(path) for path in mounts), folder
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        claims = one(overlay, OVERLAYS[overlay])["spec"].get("volumeClaimTemplates", [])
        assert set(mounts.values()) <= volumes | {claim["metadata"]["name"] for claim in claims}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_stop_has_the_time_that_the_server_takes(overlay: str) -> None:
    for template in templates(overlay):
        assert template["spec"]["terminationGracePeriodSeconds"] >= 2 * Settings.model_fields["stop_grace_s"].default


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_need_no_token(overlay: str) -> None:
    from opbox_service.routes.table import ROUTES

    paths = {route.path for route in ROUTES if not route.scope}
    for template in templates(overlay):
        [container] = template["spec"]["containers"]
        ports = {port["name"] for port in container["ports"]}
        for probe, path in (("startup", "live"), ("liveness", "live"), ("readiness", "ready")):
            http = container[f"{probe}Probe"]["httpGet"]
            assert http["path"] == f"/v2/health/{path}"
            assert http["path"] in paths
            assert http["port"] in ports


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_settings_are_settings(overlay: str) -> None:
    config = one(overlay, "ConfigMap")["data"]
    for template in templates(overlay):
        [container] = template["spec"]["containers"]
        names = {entry["name"] for entry in container["env"]} | config.keys()
        for name in names:
            if name.startswith("OPBOX_"):
                assert name.removeprefix("OPBOX_").lower() in Settings.model_fields, name
        [source] = container["envFrom"]
        assert source["configMapRef"]["name"] == one(overlay, "ConfigMap")["metadata"]["name"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_secrets_are_named_and_never_written(overlay: str) -> None:
    assert "Secret" not in {resource["kind"] for resource in built(overlay)}
    page = (ROOT / "docs" / "tutorials" / "kubernetes.md").read_text("utf-8")
    text = str(built(overlay))
    named = set(re.findall(r"'(?:secretName|name)': '(opbox-(?:tokens|metrics|ray))'", text))
    assert {"opbox-tokens", "opbox-metrics"} <= named
    for name in named:
        assert f"create secret generic {name} " in page


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_the_pods(overlay: str) -> None:
    selectors = [one(overlay, "Service")["spec"]["selector"]]
    selectors.append(one(overlay, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"])
    for policy in built(overlay):
        if policy["kind"] == "NetworkPolicy":
            selectors.append(policy["spec"]["podSelector"]["matchLabels"])
            assert set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    for template in templates(overlay):
        for selector in selectors:
            own = {key: value for key, value in selector.items() if key != "ray.io/node-type"}  # Ray's operator sets it
            assert own.items() <= template["metadata"]["labels"].items()
            assert own == NAME


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_monitors_have_a_token_and_a_port(overlay: str) -> None:
    [monitor] = [resource for resource in built(overlay) if resource["kind"] in ("ServiceMonitor", "PodMonitor")]
    [endpoint] = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "opbox-metrics", "key": "token"}
    assert endpoint["path"] == "/metrics"
    if monitor["kind"] == "ServiceMonitor":
        assert endpoint["port"] in {port["name"] for port in one(overlay, "Service")["spec"]["ports"]}
        assert (
            monitor["spec"]["selector"]["matchLabels"].items() <= one(overlay, "Service")["metadata"]["labels"].items()
        )
    else:
        for template in templates(overlay):
            assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}


def test_a_server_with_a_gpu_asks_for_one() -> None:
    [template] = templates("gpu")
    [container] = template["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {"name": "OPBOX_DEVICE", "value": "gpu:0"} in container["env"]
    [plain] = templates("single")
    assert "nvidia.com/gpu" not in plain["spec"]["containers"][0]["resources"]["limits"]


def test_the_cluster_runs_the_commands_that_there_are() -> None:
    from opbox_service.cluster.command import cluster

    cluster_spec = one("cluster", "RayCluster")
    assert cluster_spec["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    head, worker = (template["spec"]["containers"][0]["command"] for template in templates("cluster"))
    assert head[:4] == ["opbox", "cluster", "start", "--head"]
    assert worker[:4] == ["opbox", "cluster", "join", f"{cluster_spec['metadata']['name']}-head-svc:6379"]
    for command in (head, worker):
        options = {option for parameter in cluster.commands[command[2]].params for option in parameter.opts}
        assert {word for word in command if word.startswith("--")} <= options
    for template in templates("cluster"):
        [token] = [entry for entry in template["spec"]["containers"][0]["env"] if entry["name"] == "RAY_AUTH_TOKEN"]
        assert token["valueFrom"] == {"secretKeyRef": {"name": "opbox-ray", "key": "token"}}
