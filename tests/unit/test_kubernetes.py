"""Kubernetes: the manifest of a block against the API's schemas, every command line, and what kubectl prints.

Objects are shortened from those of Kubernetes 1.32. Schemas come with the package kubernetes-validate.
"""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import kubernetes_validate
import pytest

from envmatrix.block.process import Exit
from envmatrix.errors import EngineError, InputError
from envmatrix.launchers.batch_launcher import BatchLauncher
from envmatrix.launchers.batch_system import QueuedJob, Submission
from envmatrix.launchers.block_files import BlockFolder
from envmatrix.launchers.kubernetes import Kubernetes, KubernetesKind
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.results import RunFolder
from envmatrix.system.process import Finished
from envmatrix.system.progress import silent
from tests.synthetic import make_design, make_plan
from tests.unit.test_slurm_script import snapshot

ASKED = {"pod-image": "python:3.12", "volume": ("work:/shared",)}
GPU = {
    **ASKED,
    "namespace": "team-a",
    "volume": ("work:/shared", "nfs1:/export/home:/home", "/opt/sw", "/mnt/fast:/fast"),
    "resources": ("cpu=15", "memory=60Gi", "nvidia.com/gpu=1"),
    "hosts": ("n01", "n02"),
}
READY = {"conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}]}
NAME = "envmatrix-0-b0003-x7k2p"


def node(name, cpu="16", spec=None, **resources):
    has = {"cpu": cpu, "memory": "65Gi", "nvidia.com/gpu": "0", **resources}
    return {"metadata": {"name": name}, "spec": spec or {}, "status": {"allocatable": has, **READY}}


NODES = [
    node("n01"),
    node("n02", "15890m", {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, **{"nvidia.com/gpu": "8"}),
    node("n03", spec={"unschedulable": True}),
    {**node("n04"), "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
    node("control", spec={"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}),
    node("n05", spec={"taints": [{"key": "soft", "effect": "PreferNoSchedule"}]}),
]


def job(name=NAME, spec=None, **status):
    return {"kind": "Job", "metadata": {"name": name}, "spec": {"suspend": False, **(spec or {})}, "status": status}


def pod(job=NAME, host="n01", state=None, **status):
    states = {"containerStatuses": [{"name": "block", "state": state}]} if state else {}
    owners = [{"kind": "Job", "name": job, "uid": "1"}]
    spec = {"nodeName": host} if host else {}
    return {
        "kind": "Pod", "metadata": {"name": f"{job}-abcde", "ownerReferences": owners}, "spec": spec,
        "status": {**status, **states},
    }  # fmt: skip


def ended(how, **more):
    return {"conditions": [{"type": "Suspended", "status": "False"}, {"type": how, "status": "True", **more}]}


@pytest.fixture
def kubectl(monkeypatch):
    """Replace kubectl: ``answers`` by the words after it, and ``called``, the command lines and inputs."""
    made = SimpleNamespace(answers={}, called=[], inputs=[])
    made.answers |= {
        "create": "job.batch/" + NAME, "get nodes": {"items": NODES}, "version": "Client Version: v1.32.4",
        "get jobs,pods": {"items": []}, "get events": {"items": []}, "delete": "",
    }  # fmt: skip

    def run(argv, *, limit_s, input_text=None):
        made.called.append(shlex.join(argv))
        made.inputs.append(input_text)
        answer = next(value for words, value in made.answers.items() if " ".join(argv[1:]).startswith(words))
        if isinstance(answer, Exception):
            return Finished(argv, Exit(1, 0.1), "", f"{answer}\n")
        return Finished(argv, Exit(0, 0.1), answer if isinstance(answer, str) else json.dumps(answer), "")

    monkeypatch.setattr("envmatrix.launchers.batch_system.run", run)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("os.getuid", lambda: 1000)
    monkeypatch.setattr("os.getgid", lambda: 100)
    monkeypatch.setattr("os.getgroups", lambda: [100, 27])
    return made


def submission(folder="/shared/it's here", **more):
    folder = Path(folder)
    title = "envmatrix run first try, block 3"
    return Submission(
        "envmatrix-0-b0003", title, folder / "script-1.sh", folder / "kubernetes-1.log", 5430, 16, 3, **more
    )


@pytest.mark.parametrize(("name", "asked"), [("plain", ASKED), ("gpu", GPU)])
def test_the_manifest_of_a_block_is_as_recorded_and_valid_in_every_version_of_the_api(kubectl, name, asked):
    manifest = Kubernetes(asked).manifest(submission())
    for version in ("1.25", "1.29", "1.32", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(manifest, version, strict=True)
    snapshot(f"kubernetes-{name}.json", json.dumps(manifest, indent=2) + "\n")


def test_a_misspelt_field_of_the_manifest_would_be_seen(kubectl):
    manifest = Kubernetes(ASKED).manifest(submission())
    manifest["spec"]["template"]["spec"]["restartpolicy"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError, match="restartpolicy"):
        kubernetes_validate.validate(manifest, "1.32", strict=True)


def test_a_block_goes_to_its_own_node_or_to_any_that_has_not_failed(kubectl):
    def places(**more):
        affinity = Kubernetes(ASKED).manifest(submission(**more))["spec"]["template"]["spec"]["affinity"]
        terms = affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
        return [field["values"] for term in terms.get("nodeSelectorTerms", []) for field in term["matchFields"]]

    assert places() == []
    assert places(home="n05") == [["n05"]]
    kubectl.answers["get nodes"] = {"items": [node("n01"), node("n05"), node("n06")]}
    assert places(avoid=("n01",)) == [["n05"], ["n06"]]


def test_every_command_line_is_as_recorded(kubectl):
    system = Kubernetes(GPU)
    assert system.submit(submission()) == NAME
    assert json.loads(kubectl.inputs[-1]) == system.manifest(submission())
    assert system.silence() is None
    system.hosts(silent)
    kubectl.answers["get jobs,pods"] = {"items": [job()]}
    system.jobs()
    system.delete([NAME, "envmatrix-0-b0004-aaaaa"])
    snapshot("commands-of-kubernetes.txt", "\n".join(kubectl.called) + "\n")


@pytest.fixture
def launcher(kubectl, tmp_path):
    """Return a launcher and a block of it, with no unfinished trial."""
    run = SimpleNamespace(name="r", design=make_design(make_plan(())), created="2026", launcher="kubernetes",
                          launcher_options=ASKED)  # fmt: skip
    experiment, said = SimpleNamespace(run=run, folder=RunFolder(tmp_path)), []
    made = BatchLauncher("kubernetes", Kubernetes(ASKED), experiment, said.append, None)
    files = BlockFolder(tmp_path / "kubernetes" / "b0003")
    return SimpleNamespace(made=made, said=said, block=PendingBlock(3, {}, files, files.start_new_attempt(), job=NAME))


def test_the_script_takes_its_node_and_its_pod_from_the_manifest(launcher):
    text = launcher.made._script(launcher.block, [])
    assert "\nnode=$NODE_NAME\n" in text
    assert text.endswith('/order-1.json "$node" "$POD_NAME" 0 noticed\n')
    (container,) = Kubernetes(ASKED).manifest(submission())["spec"]["template"]["spec"]["containers"]
    assert {one["name"] for one in container["env"]} == {"NODE_NAME", "POD_NAME"}


def test_a_trial_that_was_lost_twice_says_how_its_pod_ended(launcher, kubectl):
    (slot,) = make_plan(()).block(0)[:1]
    launcher.block.slots = {slot.trial: slot}
    killed = pod(state={"terminated": {"reason": "OOMKilled", "exitCode": 137}})
    kubectl.answers["get jobs,pods"] = {"items": [job(**ended("Failed")), killed]}
    assert launcher.made._queue() == []
    for _ in range(3):  # files can appear late
        assert list(launcher.made._follow(launcher.block, None, None)) == []
    how = "it ended: OOMKilled, exit status 137"
    assert launcher.said == [f"block 3: job {NAME} ended with 1 trial(s) not done: {how}"]
    assert launcher.made._lost_trial(slot, launcher.block).reason == f"its job ended twice while it ran ({how})"


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [((), {"n01": 16, "n05": 16}), (("cpu=15",), {"n01": 15, "n05": 15}), (("nvidia.com/gpu=1",), {"n02": 15})],
)
def test_nodes_that_cannot_take_a_block_are_left_out(kubectl, asked, sizes):
    said = []
    hosts = Kubernetes({**ASKED, "resources": asked}).hosts(said.append)
    assert {name: len(host.cpus) for name, host in hosts.items()} == sizes
    assert said == ["host n04 is left out: it does not answer"]


def test_more_cpus_than_any_node_has_are_refused(kubectl):
    kubectl.answers["get nodes"] = {"items": NODES[:2]}
    with pytest.raises(EngineError, match="Kubernetes has no host for this"):
        Kubernetes({**ASKED, "resources": ("cpu=17",)}).hosts(silent)


def scheduling(message):
    """Return a warning of the scheduler (events.k8s.io), which has no lastTimestamp, and of an earlier one."""
    then = {"involvedObject": {"kind": "Pod", "name": f"{NAME}-abcde"}, "lastTimestamp": None}
    return [{**then, "message": text, "eventTime": f"2026-11-0{day}T10:00:00.1Z"} for text, day in
            ((message, 2), ("earlier", 1))]  # fmt: skip


FULL = "0/3 nodes are available: 3 Insufficient cpu."
QUOTA = 'Error creating: pods "x" is forbidden: exceeded quota: small, requested: cpu=16, limited: cpu=8'
PULL = 'Back-off pulling image "python:nope": ErrImagePull: not found'


@pytest.mark.parametrize(
    ("items", "events", "state", "host", "failed"),
    [
        ([job(), pod(phase="Running", state={"running": {}})], (), "Running", "n01", False),
        ([job()], (), "Pending", "", False),
        ([job()], [{"involvedObject": {"name": NAME}, "message": QUOTA}], f"Pending: {QUOTA}", "", False),
        ([job(), pod(host="", phase="Pending")], scheduling(FULL), f"Pending: {FULL}", "", False),
        ([job(), pod(phase="Pending", state={"waiting": {"reason": "ContainerCreating"}})],
         scheduling("MountVolume.SetUp failed"), "ContainerCreating: MountVolume.SetUp failed", "n01", False),
        ([job(), pod(phase="Pending", state={"waiting": {"reason": "ErrImagePull", "message": "not found"}})],
         (), "ErrImagePull: not found", "n01", False),
        ([job(), pod(phase="Pending", state={"waiting": {"reason": "ImagePullBackOff", "message": PULL}})],
         (), f"ImagePullBackOff: {PULL}", "n01", True),
    ],
)  # fmt: skip
def test_what_a_block_waits_for_is_one_line(kubectl, items, events, state, host, failed):
    kubectl.answers["get jobs,pods"] = {"items": [*items, job("other-job")]}
    kubectl.answers["get events"] = {"items": [*events]}
    first, other = Kubernetes(ASKED).jobs()
    assert first == QueuedJob(NAME, "envmatrix-0-b0003", state, host, "", failed)
    assert "\n" not in first.state
    assert other.name == "other"


def test_a_suspended_job_names_the_command_that_lets_it_run(kubectl):
    kubectl.answers["get jobs,pods"] = {"items": [job(spec={"suspend": True})]}
    (found,) = Kubernetes({**ASKED, "namespace": "a"}).jobs()
    assert shlex.split(found.release) == [
        "kubectl", "patch", "job", NAME, "--namespace", "a", "-p", '{"spec":{"suspend":false}}',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("items", "how"),
    [
        ([job(**ended("Failed")), pod(state={"terminated": {"reason": "OOMKilled", "exitCode": 137}})],
         "it ended: OOMKilled, exit status 137"),
        ([job(**ended("Failed")), pod(reason="Evicted", message="The node was low on\nresource: memory.")],
         "it ended: Evicted: The node was low on resource: memory."),
        ([job(**ended("Failed")), pod(state={"terminated": {"reason": "Error", "exitCode": 2, "message": "sh: no"}})],
         "it ended: Error, exit status 2: sh: no"),
        ([job(**ended("Failed", reason="BackoffLimitExceeded", message="Job has reached its limit"))],
         "it ended: BackoffLimitExceeded: Job has reached its limit"),
        ([job(**ended("Complete"))], "it ended: Complete"),
    ],
)  # fmt: skip
def test_a_job_that_ended_is_not_in_the_queue_and_says_how(kubectl, items, how):
    kubectl.answers["get jobs,pods"] = {"items": items}
    system = Kubernetes(ASKED)
    assert system.jobs() == []
    assert system.ended(NAME) == how
    assert system.ended("another") == ""


def test_an_api_server_that_does_not_answer_is_no_empty_queue(kubectl):
    kubectl.answers["get jobs,pods"] = OSError("The connection to the server 10.0.0.1:6443 was refused")
    assert Kubernetes(ASKED).jobs() is None


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"volume": ("a:/b",)}, "--pod-image is missing"),
        ({"pod-image": "x"}, "--volume is missing"),
        ({"volume": ("a:b",)}, "--volume: 'a:b' is nothing that kubectl takes"),
        ({"volume": ("A:/b",)}, "--volume: 'A:/b' is nothing"),
        ({"volume": ("s:/e:/b:/c",)}, "--volume: 's:/e:/b:/c' is nothing"),
        ({"namespace": "Team"}, "--namespace: 'Team' is nothing"),
        ({"namespace": "--as=root"}, "--namespace: '--as=root' is nothing"),
        ({"pod-image": "-x"}, "--pod-image: '-x' is nothing"),
        ({"resources": ("cpu",)}, "--resources: 'cpu' is nothing"),
        ({"resources": ("cpu=1500m",)}, "--resources: cpu=1500m is no whole number of CPUs"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_built(kubectl, asked, words):
    missing = words.split()[0].removeprefix("--") if "missing" in words else ""
    whole = {**{name: value for name, value in ASKED.items() if name != missing}, **asked}
    with pytest.raises(InputError) as caught:
        KubernetesKind().check_and_find_host(None, whole, (), 1, silent)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "said",
    [
        'Error from server (NotFound): error when creating "STDIN": namespaces "nope" not found',
        'Error from server (Forbidden): jobs.batch is forbidden: exceeded quota: few, requested: count/jobs.batch=1',
    ],
)  # fmt: skip
def test_what_the_api_server_refuses_is_said_before_anything_is_built(kubectl, said):
    kubectl.answers["create"] = OSError(said)
    with pytest.raises(EngineError) as caught:
        KubernetesKind().check_and_find_host(None, ASKED, (), 1, silent)
    assert f"`kubectl` failed: {said}" in str(caught.value)
    assert "--dry-run=server" in kubectl.called[-1]


def test_a_machine_without_kubectl_or_a_cluster_says_so(kubectl, monkeypatch):
    kubectl.answers["version"] = OSError("The connection to the server localhost:8080 was refused")
    assert KubernetesKind().unavailable() == (
        "its master does not answer: The connection to the server localhost:8080 was refused"
    )
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(EngineError, match="Kubernetes cannot be used: no `kubectl` on PATH"):
        KubernetesKind().check_and_find_host(None, ASKED, (), 1, silent)


def test_results_on_no_volume_are_refused_with_the_folder(kubectl):
    with pytest.raises(InputError, match=r"Pods do not see /sharedX/run: it is on no --volume \(/shared\)"):
        Kubernetes(ASKED).submit(submission("/sharedX/run"))
