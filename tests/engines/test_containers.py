"""One small image in real Docker, Podman and Apptainer: what a process sees there, and how it ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from envmatrix.build.cache import file_digest
from envmatrix.build.images.file_listing import listing_differences
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.apptainer import ApptainerEngine
from envmatrix.engines.base import Engine, Job, Prepared, library_path
from envmatrix.engines.docker import RUN_LABEL, DockerEngine, half_of_memory
from envmatrix.engines.docker_api import connect
from envmatrix.plan.environment import Environment, Image
from envmatrix.system.bench_options import folder_digest
from envmatrix.version import __version__
from tests.engines.conftest import (
    IMAGE,
    LIBRARIES,
    Said,
    builders_folders,
    demand,
    labels_of,
    seconds_of,
    untagged,
    valid_bill,
)

HOSTILE = {"A": 'x y,$HOME`id`"q"', "B": "", "C": "é;rm -rf /\\", "D": "{{ FROM }}'{0:2}'", "E": "$(touch owned)"}
SEEN = """
import json, os, socket
status = dict(line.rstrip("\\n").split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
def writes(path):
    try:
        open(path + "/probe", "w").close()
        return True
    except OSError:
        return False
json.dump({
    "variables": dict(os.environ), "cpus": sorted(os.sched_getaffinity(0)), "uid": os.getuid(), "cwd": os.getcwd(),
    "caps": status["CapEff"], "seccomp": status["Seccomp"], "nnp": status["NoNewPrivs"],
    "writes": {path: writes(path) for path in ["/work", "/tmp", "/", "/opt", "/envmatrix/bench"]},
    "interfaces": [name for _, name in socket.if_nameindex()],
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
}, open("out.json", "w"))
"""
#: Calls that would change the machine, its other processes or later measurements; they write existing values back.
TRIES = """
import ctypes, glob, json, os, sys
libc, host, managed = ctypes.CDLL(None), int(sys.argv[1]), []
def rewrite(path):
    with open(path) as file:
        body = file.read()
    with open(path, "w") as file:
        file.write(body[body.index("[") + 1 : body.index("]")] if "[" in body else body)
def only_open(path):
    os.close(os.open(path, os.O_WRONLY))
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(name)
def try_out(said, do, *arguments):
    try:
        do(*arguments)
    except (OSError, ValueError):
        return
    managed.append(said)
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/randomize_va_space",
             "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/mm/transparent_hugepage/defrag"):
    try_out("wrote " + path, rewrite, path)
for path in ("/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/sys/kernel/uevent_helper", "/dev/mem",
             "/dev/kmsg", f"/proc/{host}/mem"):
    try_out("opened " + path, only_open, path)
for path in glob.glob("/sys/fs/cgroup/cgroup.procs") + glob.glob("/sys/fs/cgroup/*/cgroup.procs"):
    try_out("opened " + path, only_open, path)
try_out("mounted", call, "mount", b"none", b"/tmp", b"tmpfs", 0, None)
try_out("mounted the kernel's settings anew", call, "mount", b"proc", b"/tmp", b"proc", 0, None)
try_out("remounted", call, "mount", None, b"/proc/sys", None, 32 | 4096, None)
try_out("made a device", os.mknod, "/tmp/device", 0o060666, os.makedev(7, 0))
try_out("traced", call, "ptrace", 16, host, 0, 0)
try_out("signalled", os.kill, host, 0)
try_out("took another uid", os.setuid, 1 if os.getuid() != 1 else 2)
try_out("gained priority", os.nice, -1)
json.dump(managed, open("managed.json", "w"))
print("uid", os.getuid())
"""
#: A number of seconds that no other program on this machine sleeps.
FOREVER = f"{600_000_000 + os.getpid()}"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def job(job: Job) -> Job:
    return replace(job, argv=(job.prepared.python, "-c", SEEN), env=HOSTILE)


def seen(engine: Engine, job: Job) -> dict[str, object]:
    ended = engine.run(job)
    assert ended.ok, job.log.read_text()
    found: dict[str, object] = json.loads((job.mounts.work / "out.json").read_text())
    return found


def test_variables_arrive_exactly_and_nothing_else_of_the_host_does(
    engine: Engine, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "99")
    variables = seen(engine, job)["variables"]
    assert isinstance(variables, dict)
    assert {name: variables.get(name) for name in HOSTILE} == HOSTILE
    assert "OMP_NUM_THREADS" not in variables
    assert not (job.mounts.work / "owned").exists()


def test_a_container_is_closed(engine: Engine, job: Job) -> None:
    found = seen(engine, job)
    assert found["writes"] == {"/work": True, "/tmp": True, "/": False, "/opt": False, "/envmatrix/bench": False}
    assert int(str(found["caps"]), 16) == 0
    assert found["seccomp"] == "0"
    assert found["nnp"] == "1"
    assert found["interfaces"] == ["lo"]
    assert found["cwd"] == "/work"
    if isinstance(engine, DockerEngine):
        assert found["uid"] != 0
        assert found["shm"] == 2**28


def test_nothing_of_the_machine_can_be_changed(engine: Engine, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    assert managed(engine, job) == []
    assert "uid 0" not in job.log.read_text()
    if engine.name == "apptainer" and os.geteuid() == 0:  # a root without a loop device has no other uid inside
        monkeypatch.setattr("envmatrix.engines.apptainer_command.root_needs_namespace", lambda: True)
        job = replace(job, mounts=replace(job.mounts, work=job.mounts.work.with_name("second")))
        job.mounts.work.mkdir()
        assert managed(engine, job) == []
        assert "uid 0" in job.log.read_text()


def managed(engine: Engine, job: Job) -> list[str]:
    """Return the changes to this machine that a process in a container managed to make."""
    ended = engine.run(replace(job, argv=(job.prepared.python, "-c", TRIES, str(os.getpid()))))
    assert ended.ok, job.log.read_text()
    found: list[str] = json.loads((job.mounts.work / "managed.json").read_text())
    return found


def test_shared_memory_is_the_same_in_every_engine_unless_asked_for(engine: Engine, job: Job) -> None:
    found = seen(engine, replace(job, limits=replace(job.limits, shm_bytes=None)))
    assert found["shm"] == pytest.approx(half_of_memory(), rel=0.02)


def test_a_container_has_the_cpus_it_was_given(engine: Engine, job: Job) -> None:
    last = max(os.sched_getaffinity(0))
    assert seen(engine, replace(job, limits=replace(job.limits, cpus=(last,))))["cpus"] == [last]


def test_a_folder_that_is_mounted_has_its_own_path_inside_and_cannot_be_written(
    engine: Engine, job: Job, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "words").write_text("some")
    data.chmod(0o777)
    look = (
        f"import json; found = open('{data}/words').read()\n"
        f"try: open('{data}/new', 'w'); found = 'written'\n"
        "except OSError: pass\n"
        "json.dump({'found': found}, open('out.json', 'w'))"
    )
    argv = (job.prepared.python, "-c", look)
    assert seen(engine, replace(job, argv=argv, mounts=replace(job.mounts, same=(data,)))) == {"found": "some"}


def test_a_preloaded_library_is_active_inside(engine: Engine, job: Job) -> None:
    path = library_path(job.prepared, "malloc-jemalloc", "libjemalloc.so.2")
    code = "assert 'libjemalloc.so.2' in open('/proc/self/maps').read()"
    ended = engine.run(replace(job, argv=(job.prepared.python, "-c", code), preload=(path,)))
    assert ended.ok, job.log.read_text()
    assert "cannot be preloaded" not in job.log.read_text()


def test_the_wheels_of_the_lock_are_inside(engine: Engine, job: Job) -> None:
    code = "import tinypkg; print('got', tinypkg.VERSION)"
    assert engine.run(replace(job, argv=(job.prepared.python, "-c", code))).ok
    assert "got 1.0" in job.log.read_text()
    assert job.prepared.facts["package tinypkg"] == "1.0"
    assert job.prepared.facts["system python3"].startswith("3.11")


def test_ways_of_ending_are_told_apart(engine: Engine, job: Job) -> None:
    python = job.prepared.python
    assert engine.run(replace(job, argv=(python, "-c", "raise SystemExit(7)"))).code == 7
    missing = engine.run(replace(job, argv=("/no/such/program",))) if engine.name == "apptainer" else None
    assert missing is None or not missing.ok
    killed = engine.run(replace(job, argv=(python, "-c", "import ctypes; ctypes.string_at(0)")))
    assert not killed.ok
    started = time.monotonic()
    late = engine.run(replace(job, argv=("sleep", FOREVER), limits=replace(job.limits, seconds=3)))
    assert late.timed_out
    assert time.monotonic() - started < 60
    assert leftovers(job.run) == []


def leftovers(run: str) -> list[str]:
    """Return what still runs of a run: containers and sleeping processes."""
    ours = subprocess.run(["pgrep", "-f", f"^sleep {FOREVER}$"], capture_output=True, text=True).stdout.split()
    try:
        client = connect()
        found = client.containers.list(all=True, filters={"label": f"{RUN_LABEL}={run}"})
    except Exception:
        return ours
    return ours + [str(container.id) for container in found]


def run_forever(engine: Engine, job: Job) -> None:
    engine.run(replace(job, argv=("sleep", FOREVER), limits=replace(job.limits, seconds=500)))


def test_after_kill_9_a_sweep_leaves_nothing(engine: Engine, job: Job) -> None:
    child = multiprocessing.get_context("fork").Process(target=run_forever, args=(engine, job))
    child.start()
    for _ in range(600):
        if subprocess.run(["pgrep", "-f", f"^sleep {FOREVER}$"], capture_output=True).returncode == 0:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the container did not start: " + (job.log.read_text() if job.log.exists() else ""))
    child.kill()
    child.join()
    engine.sweep(job.run)
    for _ in range(300):
        if not leftovers(job.run):
            return
        time.sleep(0.1)
    pytest.fail(f"left: {leftovers(job.run)}")


def test_a_no_change_prepare_takes_less_than_two_seconds(engine: Engine, prepared: Prepared, said: Said) -> None:
    assert min(seconds_of(lambda: engine.prepare(IMAGE, LIBRARIES, said), prepared) for _ in range(3)) < 2
    assert said == []


def test_a_bill_of_materials_lists_system_packages_and_wheels(engine: Engine, prepared: Prepared) -> None:
    assert isinstance(engine, (DockerEngine, ApptainerEngine))
    bill = valid_bill(engine.bill_file(prepared))
    found = {component["name"]: component for component in bill["components"]}
    for key, names in (("hashes", ("tinypkg", "numactl", "libjemalloc2")), ("licenses", ("libc6", "numactl"))):
        assert all(key in found[name] for name in names)
    needs = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert found["libc6"]["bom-ref"] in needs[found["numactl"]["bom-ref"]]


NAMED_VALUES = {name: value.replace("'", "") for name, value in HOSTILE.items()}  # see apptainer_quote
NAMED = Environment(
    "tiny-named", "a \"quoted\" $description", {"malloc": "jemalloc"}, IMAGE,
    {**NAMED_VALUES, "GONE": None}, (("malloc-jemalloc", "libjemalloc.so.2"),), {},
)  # fmt: skip
OTHER = replace(NAMED, name="tiny-other", variables={"A": "other"}, preload=())


def test_named_environments_of_one_image_differ_only_in_metadata(
    engine: Engine, prepared: Prepared, tmp_path: Path
) -> None:
    if not isinstance(engine, DockerEngine):
        pytest.skip("SIFs of named environments are files of their own")
    client = connect()
    one, two = (
        client.images.get(engine.build_named(item, LIBRARIES, tmp_path, Said()).reference) for item in (NAMED, OTHER)
    )
    image = client.images.get(prepared.reference)
    assert one.attrs["RootFS"]["Layers"] == two.attrs["RootFS"]["Layers"] == image.attrs["RootFS"]["Layers"]
    assert one.attrs["Config"]["Env"] != two.attrs["Config"]["Env"]
    assert untagged(f"org.envmatrix.stage={prepared.reference}") == []
    engine.build_named(replace(OTHER, variables={"A": "another"}), LIBRARIES, tmp_path, Said())
    assert untagged("org.opencontainers.image.title=envmatrix/tiny-other") == []  # the image that was replaced


def stand_alone(engine: Engine, tmp_path: Path) -> list[str]:
    """Build the named environment, check its labels, and return the plain command that runs it."""
    assert isinstance(engine, (DockerEngine, ApptainerEngine))
    image = engine.build_named(NAMED, LIBRARIES, tmp_path, Said())
    facts = engine.prepare(IMAGE, LIBRARIES, Said()).facts
    assert labels_of(image.reference) == {
        "org.opencontainers.image.title": "envmatrix/tiny-named",
        "org.opencontainers.image.description": NAMED.description,
        "org.opencontainers.image.version": __version__,
        "org.opencontainers.image.created": "2025-01-01T00:00:00Z",
        "org.opencontainers.image.licenses": "Apache-2.0",
        **{f"org.opencontainers.image.{name}": "" for name in ("source", "revision")},
        "org.opencontainers.image.base.name": facts["base"],
        "org.opencontainers.image.base.digest": facts["base_digest"],
        "org.envmatrix.levels": '{"malloc": "jemalloc"}',
        "org.envmatrix.lock": facts["lock_digest"],
        "org.envmatrix.bench": folder_digest(engine.places.bench),
    }
    if isinstance(engine, ApptainerEngine):
        assert builders_folders(image.reference) == []
        userns = ["--userns"] if os.geteuid() == 0 else []
        return ["apptainer", "--silent", "run", *userns, "--cleanenv", "--no-home", image.reference]
    return [engine.name, "run", "--rm", "--read-only", "--tmpfs", "/tmp", "--network", "none", image.reference]


def test_a_named_image_runs_the_benchmark_alone_with_its_variables_exact(engine: Engine, tmp_path: Path) -> None:
    argv = stand_alone(engine, tmp_path)
    if argv[0] == "podman":
        pytest.skip("the podman command does not use the service's storage")
    done = subprocess.run([*argv, "--steps", "3"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    sif = Path(argv[-1]) if isinstance(engine, ApptainerEngine) else None
    digest = f"sha256:{file_digest(sif)}" if sif else str(connect().images.get(argv[-1]).id)
    [bill] = tmp_path.glob("tiny-named*.sbom.json")
    assert valid_bill(bill)["metadata"]["component"]["version"] == digest
    record = json.loads(done.stdout)
    assert record["arguments"] == ["--steps", "3"]
    assert {name: record["variables"].get(name) for name in NAMED_VALUES} == NAMED_VALUES
    assert record["variables"]["LD_PRELOAD"] == "/opt/envmatrix/lib/malloc-jemalloc/libjemalloc.so.2"
    assert record["variables"]["PYTHONPATH"] == "/envmatrix"
    if engine.name == "docker":
        assert record["uid"] == 65532


@pytest.mark.docker
@pytest.mark.apptainer
def test_docker_and_apptainer_show_the_same_root_file_system(ground: BuildPaths) -> None:
    docker, apptainer = DockerEngine(ground), ApptainerEngine(ground)
    demand(docker.unavailable() or apptainer.unavailable())
    one, two = (item.prepare(IMAGE, LIBRARIES, Said()) for item in (docker, apptainer))
    assert listing_differences(ground.cache, one.facts["files_digest"], two.facts["files_digest"]) == []
    assert one.facts["files_digest"] == two.facts["files_digest"]


@pytest.mark.apptainer
def test_apptainer_alone_builds_the_same_image_from_its_definition(
    ground: BuildPaths, monkeypatch: pytest.MonkeyPatch, said: Said, tmp_path: Path
) -> None:
    engine = ApptainerEngine(ground)
    demand(engine.unavailable())
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    prepared = engine.prepare(Image("alone", requirements=("tinypkg==1.0",)), LIBRARIES, said)
    assert prepared.facts["sif_from"] == "definition"
    assert builders_folders(prepared.reference) == []
    argv = ["apptainer", "exec", *(["--userns"] if os.geteuid() == 0 else []), prepared.reference, prepared.python]
    done = subprocess.run([*argv, "-c", "import tinypkg; print(tinypkg.VERSION)"], capture_output=True, text=True)
    assert done.stdout == "1.0\n", done.stderr
