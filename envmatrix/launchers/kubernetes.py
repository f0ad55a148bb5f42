"""The launcher ``kubernetes``: each block is a Job with one Pod, made and followed with kubectl.

Objects and states are those of batch/v1 Job, core/v1 Pod, Node and Event in https://kubernetes.io/docs/reference
(1.25 or later). Experimental: it never ran on a real cluster.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from envmatrix.errors import InputError
from envmatrix.launchers.base import Option
from envmatrix.launchers.batch_launcher import BatchKind
from envmatrix.launchers.batch_system import (
    COMMON,
    HOSTS,
    BatchSystem,
    QueuedJob,
    Submission,
    ask,
    host_of_cpus,
    json_object_or_empty,
)
from envmatrix.system.host import Host

if TYPE_CHECKING:
    from envmatrix.results.run_model import LauncherOptions

#: An object of the Kubernetes API.
Object = Mapping[str, Any]
_MANIFEST = Path(__file__).with_name("kubernetes_job.yaml")
_LABELS = {"app.kubernetes.io/name": "envmatrix"}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*\Z")
_RESOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9./_-]*=[0-9]+(\.[0-9]+)?[A-Za-z]{0,2}\Z")
#: /PATH, CLAIM:/PATH, /HOST/PATH:/PATH or SERVER:/EXPORT:/PATH.
_VOLUME = re.compile(r"([a-z0-9][a-z0-9.-]*:(/[^:]*:)?|/[^:]*:)?/[^:]*\Z")
#: Reasons why a container waits that do not go away by themselves.
_NEVER = {
    *("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
}
#: The output of the script goes into its log; what comes before that is in the Pod's status.
_COMMAND = ("/bin/sh", "-c", 'exec /bin/sh "$0" >>"$1" 2>&1')


class Kubernetes(BatchSystem):
    """Kubernetes: no two blocks share a node. envmatrix submits a lost block again, not the Job (backoffLimit 0)."""

    title = "Kubernetes"
    narrow = "--hosts or --resources cpu=N"
    commands = ("kubectl",)
    probe = ("kubectl", "version", "--request-timeout=20s")
    sets = ("node=$NODE_NAME",)
    who = '"$node" "$POD_NAME" 0 noticed'

    def __init__(self, asked: LauncherOptions | None = None) -> None:
        super().__init__(asked)
        self._ends: dict[str, str] = {}

    def known_hosts(self) -> dict[str, Host | None]:
        """Return the nodes that Pods can be scheduled on and that have what was asked for; None: it is not ready.

        Raises EngineError if the API server refuses the manifest, such as for a namespace that does not exist.
        """
        trial = Submission("envmatrix-check", "check of the options", Path("/"), Path("/"), 60, self._cpus() or 1)
        self._create(trial, "--dry-run=server")
        nodes = json.loads(self.answer("kubectl", "get", "nodes", "-o", "json"))["items"]
        return _read_nodes(nodes, self._resources(), self._cpus())

    def jobs(self) -> list[QueuedJob] | None:
        """Return the unfinished Jobs of envmatrix in the namespace; None if the API server does not answer."""
        selector = ",".join(f"{name}={value}" for name, value in _LABELS.items())
        answer = ask("kubectl", "get", "jobs,pods", *self._namespace(), "-l", selector, "-o", "json")
        items = json_object_or_empty(answer).get("items") if answer.exit.ok else None
        if items is None:
            return None
        pods = {owner["name"]: pod for pod in items for owner in pod["metadata"].get("ownerReferences", ())}
        jobs = []
        for job in (item for item in items if item["kind"] == "Job"):
            name = job["metadata"]["name"]
            pod = pods.get(name, {})
            if end := _end(job, pod):
                self._ends[name] = end
            else:
                jobs.append(self._queued(job, pod))
        return jobs

    def ended(self, job: str) -> str:
        """Return how a Job ended, '' if that is not known."""
        return self._ends.get(job, "")

    def _queued(self, job: Object, pod: Object) -> QueuedJob:
        name = job["metadata"]["name"]
        block, host = name.rpartition("-")[0], pod.get("spec", {}).get("nodeName", "")
        if job["spec"].get("suspend"):
            words = ("kubectl", "patch", "job", name, *self._namespace(), "-p", '\'{"spec":{"suspend":false}}\'')
            return QueuedJob(name, block, "suspended", release=" ".join(words))
        status = pod.get("status", {})
        phase, waiting = status.get("phase", "Pending"), _container(pod, "waiting")
        if phase != "Pending":
            return QueuedJob(name, block, phase, host)
        reason = waiting.get("reason", phase)
        message = waiting.get("message") or self._warning({name, pod.get("metadata", {}).get("name")})
        return QueuedJob(name, block, _line(reason, message), host, failed=reason in _NEVER)

    def _warning(self, names: set[str]) -> str:
        """Return the last warning about a Job or its Pod, such as an exceeded quota or no node that fits."""
        events = ("kubectl", "get", "events", *self._namespace(), "--field-selector", "type=Warning", "-o", "json")
        warnings = json_object_or_empty(ask(*events)).get("items", ())
        times_and_texts = [
            (event.get("lastTimestamp") or event.get("eventTime") or "", str(event.get("message", "")))
            for event in warnings
            if event["involvedObject"]["name"] in names
        ]
        return max(times_and_texts, default=("", ""))[1]

    def requested_resources(self) -> list[str]:
        """Return the resources that were asked for. Raises InputError if an option is wrong or missing."""
        self._namespace()
        if not self.values("pod-image", _IMAGE):
            raise InputError("--pod-image is missing", remedy="such as `--pod-image python:3.12`: the Pod's image")
        if not self._volumes():
            raise InputError(
                "--volume is missing: Pods must see the folders of results and cache by the same paths as this machine",
                remedy="such as `--volume my-claim:/shared`, `--volume server:/export:/shared` or `--volume /shared`",
            )
        return self.values("resources", _RESOURCE)

    def _resources(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.requested_resources())

    def _cpus(self) -> int:
        """Return how many CPUs were asked for; 0: all that Pods can have."""
        text = self._resources().get("cpu", "0")
        if not text.isdecimal():
            raise InputError(f"--resources: cpu={text} is no whole number of CPUs", remedy="such as `cpu=15`")
        return int(text)

    def _namespace(self) -> list[str]:
        return [word for name in self.values("namespace", _NAMESPACE) for word in ("--namespace", name)]

    def _volumes(self) -> list[tuple[str, dict[str, object]]]:
        """Return the path and the source of each volume."""
        return [_volume(text) for text in self.values("volume", _VOLUME)]

    def submit(self, job: Submission) -> str:
        """Create the Job of a block and return its name."""
        paths = [path for path, _ in self._volumes()]
        if not any(job.script.is_relative_to(path) for path in paths):
            raise InputError(
                f"Pods do not see {job.script.parent}: it is on no --volume ({', '.join(paths)})",
                remedy="mount its volume at the same path as on this machine; with --results, choose a folder on it",
            )
        return self._create(job).strip().partition("/")[2]

    def _create(self, job: Submission, *more: str) -> str:
        argv = ("kubectl", "create", *self._namespace(), *more, "-o", "name", "-f", "-")
        return self.answer(*argv, text=json.dumps(self.manifest(job)))

    def delete(self, jobs: Sequence[str]) -> None:
        """Delete Jobs and their Pods."""
        ask("kubectl", "delete", "job", *self._namespace(), "--ignore-not-found", "--wait=false", *jobs)

    def manifest(self, job: Submission) -> dict[str, Any]:
        """Return the Job of a block."""
        manifest: dict[str, Any] = yaml.safe_load(_MANIFEST.read_text(encoding="utf-8"))
        labels = {**_LABELS, "app.kubernetes.io/instance": job.name.rpartition("-")[0]}
        annotations = {"kubernetes.io/description": job.title}
        manifest["metadata"] |= {"generateName": f"{job.name}-", "labels": labels, "annotations": annotations}
        manifest["spec"]["template"]["metadata"]["labels"] = labels
        self._fill_pod(manifest["spec"]["template"]["spec"], job)
        return manifest

    def _fill_pod(self, pod: dict[str, Any], job: Submission) -> None:
        needs = {"cpu": str(job.cpus), **self._resources()}
        volumes = self._volumes()
        volumes.append(("/dev/shm", {"emptyDir": {"medium": "Memory"}}))  # noqa: S108 - else it has 64 MB
        user, groups = os.getuid(), sorted(os.getgroups())
        pod["activeDeadlineSeconds"] = job.seconds
        pod["securityContext"] |= {"runAsUser": user, "runAsGroup": os.getgid(), "supplementalGroups": groups}
        pod["securityContext"]["runAsNonRoot"] = user != 0
        pod["tolerations"] = [{"key": name, "operator": "Exists"} for name in needs if "/" in name]
        pod["volumes"] = [{"name": f"volume-{i}", **source} for i, (_, source) in enumerate(volumes)]
        pod["containers"][0] |= {
            "image": self.values("pod-image", _IMAGE)[0],
            "command": [*_COMMAND, str(job.script), str(job.log)],
            "resources": {"requests": needs, "limits": needs},
            "volumeMounts": [{"name": f"volume-{i}", "mountPath": path} for i, (path, _) in enumerate(volumes)],
        }
        if places := self.places(job):  # one term each: a field takes a single name
            fields = [[{"key": "metadata.name", "operator": "In", "values": [name]}] for name in places]
            terms = [{"matchFields": field} for field in fields]
            pod["affinity"]["nodeAffinity"] = {_REQUIRED: {"nodeSelectorTerms": terms}}


class KubernetesKind(BatchKind):
    """The kind ``kubernetes``: Jobs of Kubernetes. Experimental."""

    name = "kubernetes"
    experimental = True
    system = Kubernetes
    options = (
        *(option for option in COMMON if option.name in {"nodes", "time"}),
        HOSTS,
        Option("namespace", "NAME", "namespace of the Jobs (default: kubectl's)"),
        Option("pod-image", "IMAGE", "container image of the Pods"),
        Option("volume", "SOURCE:PATH", "claim, NFS export or path of the nodes, seen by Pods at PATH", takes="names"),
        Option("resources", "NAME=VALUE", "resources, such as cpu=15,memory=60Gi,nvidia.com/gpu=1", takes="names"),
    )


def _volume(text: str) -> tuple[str, dict[str, object]]:
    """Return the path of a volume in the Pod, and its source."""
    *source, path = text.split(":")
    if len(source) == 2:
        return path, {"nfs": {"server": source[0], "path": source[1]}}
    if source and not source[0].startswith("/"):
        return path, {"persistentVolumeClaim": {"claimName": source[0]}}
    return path, {"hostPath": {"path": (source or [path])[0], "type": "Directory"}}


def _read_nodes(nodes: Sequence[Object], resources: Mapping[str, str], cpus: int) -> dict[str, Host | None]:
    """Return the nodes of `kubectl get nodes` that fit, with ``cpus`` CPUs (0: all that Pods can have).

    Nodes that are cordoned, or have a taint that is no resource that was asked for, are left out.
    """
    hosts: dict[str, Host | None] = {}
    for node in nodes:
        name, spec, allocatable = node["metadata"]["name"], node["spec"], node["status"].get("allocatable", {})
        taints = {taint["key"] for taint in spec.get("taints", ()) if taint["effect"] != "PreferNoSchedule"}
        cpu_count = re.fullmatch(r"([0-9]+)(m?)", str(allocatable.get("cpu")))
        count = int(cpu_count[1]) // (1000 if cpu_count[2] else 1) if cpu_count else 0
        if "Ready" not in _conditions(node):
            hosts[name] = None
        elif not (spec.get("unschedulable") or taints - set(resources) or count < max(cpus, 1)) and all(
            allocatable.get(resource, "0") != "0" for resource in resources
        ):
            hosts[name] = host_of_cpus(name, cpus or count, cpus or count)
    return hosts


def _container(pod: Object, state: str) -> Object:
    """Return what a Pod says of its container in this state, {} if it is in another one."""
    states = pod.get("status", {}).get("containerStatuses") or [{}]
    description: Object = states[0].get("state", {}).get(state) or {}
    return description


def _conditions(document: Object) -> dict[str, Object]:
    """Return the conditions of an object that are true, by type."""
    conditions = document.get("status", {}).get("conditions", ())
    return {condition["type"]: condition for condition in conditions if condition["status"] == "True"}


def _end(job: Object, pod: Object) -> str:
    """Return how a Job ended, in the words of its Pod if that still exists; '' if it has not ended."""
    conditions = _conditions(job)
    ended = conditions.get("Failed") or conditions.get("Complete")
    if not ended:
        return ""
    status, container = pod.get("status", {}), _container(pod, "terminated")
    if "reason" in status:  # such as Evicted or DeadlineExceeded
        return _line(f"it ended: {status['reason']}", status.get("message", ""))
    if container:
        how = f"{container.get('reason')}, exit status {container.get('exitCode')}"
        return _line(f"it ended: {how}", container.get("message", ""))
    return _line(f"it ended: {ended.get('reason', ended['type'])}", ended.get("message", ""))


def _line(reason: str, message: str) -> str:
    return " ".join(f"{reason}: {message}".split())[:400].removesuffix(":")
