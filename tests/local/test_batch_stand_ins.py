"""The launchers `pbs`, `lsf` and `kubernetes` with stand-ins for their commands; their jobs are real processes here."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cluster.conftest import command
from tests.cluster.slurm_daemons import wait_for
from tests.local.conftest import PROJECT
from tests.local.test_own_launcher import MATRIX, ran_once

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]
#: Every command is this program: it notes what it is asked for in a folder, and the test's scheduler does it.
COMMAND = """#!{python}
import json, os, pathlib, sys, time
name, words, queue = os.path.basename(sys.argv[0]), sys.argv[1:], pathlib.Path({queue!r})
host, cpus = os.uname().nodename.split(".")[0], os.cpu_count()
jobs = [json.loads(file.read_text()) for file in sorted(queue.glob("*.run"))]
if name in ("qsub", "bsub"):
    value = lambda option: words[words.index(option) + 1]
    script = sys.stdin.read() if name == "bsub" else open(words[-1]).read()
    job = dict(job=str(len(list(queue.glob("*.new"))) + 1), script=script)
    job |= dict(name=value("-J"), log=value("-oo")) if name == "bsub" else dict(name=value("-N"), log=value("-o"))
    draft = queue / "draft"
    draft.write_text(json.dumps(job))
    draft.rename(queue / (job["job"] + ".new"))
    while not any(queue.glob(job["job"] + ".run*")): time.sleep(0.02)
    print("Job <" + job["job"] + "> is submitted to queue <normal>." if name == "bsub" else job["job"])
if name == "qselect": print(*(job["job"] for job in jobs), sep="\\n")
if name == "qstat":
    rows = {{job["job"]: dict(Job_Name=job["name"], job_state="R", exec_host=f"{{host}}/0*{{cpus}}") for job in jobs}}
    print(json.dumps(dict(Jobs=rows)))
if name == "bjobs":
    rows = [dict(JOBID=job["job"], JOB_NAME=job["name"], STAT="RUN", EXEC_HOST=f"{{cpus}}*{{host}}") for job in jobs]
    print(json.dumps(dict(COMMAND=name, JOBS=len(rows), RECORDS=rows)))
if name == "pbsnodes":
    print(json.dumps(dict(nodes={{host: dict(state="free", resources_available=dict(host=host, ncpus=cpus))}})))
if name == "lshosts":
    row = dict(HOST_NAME=host, nprocs=str(cpus), ncores="1", nthreads="1", server="Yes")
    print(json.dumps(dict(COMMAND=name, HOSTS=1, RECORDS=[row])))
if name in ("qdel", "bkill"):
    for word in words: (queue / (word + ".kill")).touch()
"""
#: kubectl; its node is this machine, and it cannot pull the image "nope".
KUBECTL = """#!{python}
import json, os, pathlib, sys, time
words, queue, host = sys.argv[1:], pathlib.Path({queue!r}), os.uname().nodename
if words[0] == "create":
    job = json.load(sys.stdin)
    name = job["metadata"]["generateName"] + str(10000 + len(list(queue.glob("*.new"))))
    job["metadata"]["name"] = name
    if "--dry-run=server" not in words:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        draft = queue / "draft"
        draft.write_text(json.dumps(dict(job=name, argv=container["command"], image=container["image"])))
        draft.rename(queue / (name + ".new"))
        while not any(queue.glob(name + ".run*")): time.sleep(0.02)
    print("job.batch/" + name)
if words[:2] == ["get", "nodes"]:
    status = dict(allocatable=dict(cpu=str(os.cpu_count())), conditions=[dict(type="Ready", status="True")])
    print(json.dumps(dict(items=[dict(metadata=dict(name=host), spec=dict(), status=status)])))
if words[:2] == ["get", "jobs,pods"]:
    items = []
    for file in sorted(queue.glob("*.run*")):
        name, image = file.stem, json.loads(file.read_text())["image"]
        done = [dict(type="Complete", status="True")] if file.suffix == ".run-before" else []
        items.append(dict(kind="Job", metadata=dict(name=name), spec=dict(), status=dict(conditions=done)))
        state = dict(waiting=dict(reason="ImagePullBackOff", message='Back-off pulling image "nope"'))
        status = dict(phase="Running")
        if image == "nope": status = dict(phase="Pending", containerStatuses=[dict(state=state)])
        metadata = dict(name=name + "-abcde", ownerReferences=[dict(name=name)])
        items.append(dict(kind="Pod", metadata=metadata, spec=dict(nodeName=host), status=status))
    print(json.dumps(dict(items=items)))
if words[:2] == ["delete", "job"]:
    for word in words[2:]:
        if not word.startswith("--"): (queue / (word + ".kill")).touch()
"""


class Scheduler(threading.Thread):
    """Starts the jobs of a folder and ends those that were deleted, each with all its processes (SIGTERM)."""

    def __init__(self, queue):
        super().__init__(daemon=True)
        self.queue, self.ended, self.jobs = queue, threading.Event(), {}

    def run(self):
        while not self.ended.wait(0.05):
            for file in self.queue.glob("*.new"):
                if file.stem not in self.jobs:
                    job = json.loads(file.read_text())
                    (self.start_pod if "argv" in job else self.start_job)(job)
            for file in self.queue.glob("*.kill"):
                if self.jobs[file.stem].poll() is None:
                    os.killpg(self.jobs[file.stem].pid, signal.SIGTERM)
                file.unlink()
            for job, process in self.jobs.items():
                if process.poll() is not None and (self.queue / f"{job}.run").exists():
                    (self.queue / f"{job}.run").replace(self.queue / f"{job}.run-before")

    def start_pod(self, job):
        """Run the command of a Pod with the variables of its manifest; one whose image is missing only waits."""
        name = job["job"]
        variables = {"PATH": os.environ["PATH"], "NODE_NAME": os.uname().nodename, "POD_NAME": f"{name}-abcde"}
        argv = ["sleep", "300"] if job["image"] == "nope" else job["argv"]
        self.jobs[name] = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, env=variables, cwd="/", start_new_session=True
        )
        (self.queue / f"{name}.run").write_text(json.dumps(job))

    def start_job(self, job):
        script, number = self.queue / f"{job['job']}.sh", job["job"]
        script.write_text(job.pop("script"))
        host = os.uname().nodename.split(".")[0]
        variables = {**os.environ, "PBS_JOBID": number, "LSB_JOBID": number, "LSB_HOSTS": f"{host} {host}"}
        with Path(job["log"]).open("ab") as log:
            self.jobs[number] = subprocess.Popen(
                ["/bin/sh", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        (self.queue / f"{number}.run").write_text(json.dumps(job))

    def close(self):
        self.ended.set()
        self.join()
        for process in self.jobs.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(params=["pbs", "lsf", "kubernetes"])
def project(request, project, tmp_path, monkeypatch):
    """A project of two environments, the words for its launcher, and the stand-in for its batch system."""
    queue, commands = tmp_path / "queue", tmp_path / "commands"
    queue.mkdir()
    commands.mkdir()
    names = ("qsub", "qselect", "qstat", "qdel", "pbsnodes", "bsub", "bjobs", "bkill", "lshosts", "kubectl")
    for name in names:
        text = KUBECTL if name == "kubectl" else COMMAND
        (commands / name).write_text(text.format(python=sys.executable, queue=str(queue)))
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    (project.folder / "matrix.yaml").write_text(MATRIX.replace("HELD", str(project.held.folder)))
    project.how = command()
    project.bench = ("bench", "--launcher", request.param, "--nodes", "2", "--name", "one")
    if request.param == "kubernetes":
        project.bench += ("--pod-image", "python:3.12", "--volume", str(tmp_path))
    project.delete = {"pbs": ["qdel"], "lsf": ["bkill"], "kubernetes": ["kubectl", "delete", "job"]}[request.param]
    project.jobs = lambda: sorted(file.stem for file in queue.glob("*.new"))
    scheduler = Scheduler(queue)
    scheduler.start()
    yield project
    scheduler.close()


def test_two_blocks_run_as_jobs_and_each_has_a_log(project):
    done = project.run(*project.bench)
    assert done.returncode == 0, done.stderr
    assert f"block 1: job {project.jobs()[1]} in the queue" in " ".join(done.stderr.split())
    assert ran_once(project)
    launcher = project.bench[2]
    assert all((project.newest() / launcher / block / f"{launcher}-1.log").exists() for block in ("b0000", "b0001"))


def test_a_job_that_somebody_deletes_is_not_fought_and_resume_finishes_its_block(project):
    project.held.hold(2)
    bench = project.start(*project.bench, "--max-blocks", "1")
    wait_for(lambda: project.held.starts() == 2 and len(project.trials()) == 1, 120, "the second trial")
    (job,) = project.jobs()
    subprocess.run([*project.delete, job], check=True)
    _, said = bench.communicate(timeout=120)
    assert bench.returncode == 3, said
    assert f"job {job} ended with 2 trial(s) not done: it was deleted, or its time limit" in " ".join(said.split())
    project.held.let_go()
    resumed = project.run("resume", "one")
    assert resumed.returncode == 0, resumed.stderr
    assert len(project.trials()) == len({trial["trial"] for trial in project.trials()}) == 3


@pytest.mark.parametrize("project", ["kubernetes"], indirect=True)
def test_an_image_that_cannot_be_pulled_ends_the_run_with_one_line(project):
    done = project.run(*project.bench, "--pod-image", "nope", "--max-blocks", "1")
    assert done.returncode == 4, done.stderr
    reason = 'the last one: it could not start: ImagePullBackOff: Back-off pulling image "nope"'
    assert reason in " ".join(done.stderr.split())
    assert len(project.jobs()) == 3
