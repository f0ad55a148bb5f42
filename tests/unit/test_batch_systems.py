"""PBS and LSF: the text of a block's script, every command line, and what their commands print.

Outputs are shortened from OpenPBS 20 and 22 (qstat, pbsnodes) and Spectrum LSF 10.1 (bjobs, bsub).
"""

import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest

from envmatrix.__main__ import main
from envmatrix.errors import EngineError, InputError
from envmatrix.launchers.batch_launcher import BatchLauncher
from envmatrix.launchers.batch_system import QueuedJob, Submission
from envmatrix.launchers.block_files import BlockFolder
from envmatrix.launchers.gridengine import GridEngine
from envmatrix.launchers.lsf import Lsf, LsfKind
from envmatrix.launchers.pbs import Pbs, PbsKind
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.launchers.ssh import Ssh
from envmatrix.results import RunFolder
from envmatrix.system.progress import silent
from tests.synthetic import make_design, make_plan
from tests.unit.test_slurm_script import snapshot

HEAD = '{"timestamp":1630683518,"pbs_version":"20.0.1","pbs_server":"pbs"'
NODES = (
    HEAD + ',"nodes":{"n01":{"Mom":"n01.cluster","ntype":"PBS","state":"free","pcpus":56,"jobs":["110298.hpc"],'
    '"resources_available":{"arch":"linux","host":"n01","mem":"384000000kb","ncpus":56,"vnode":"n01"}},'
    '"n02":{"state":"job-exclusive","resources_available":{"host":"n02","ncpus":56}},'
    '"n03":{"state":"offline,down","resources_available":{"host":"n03","ncpus":56}},'
    '"n04":{"state":"state-unknown,down","resources_available":{"host":"n04","vnode":"n04"}}}}'
)
JOBS = (
    HEAD + ',"Jobs":{"157.pbs":{"Job_Name":"envmatrix-0-b0000","Job_Owner":"me@pbs","job_state":"H","queue":"workq"},'
    '"158.pbs":{"Job_Name":"envmatrix-0-b0001","job_state":"R","exec_host":"n01/0*56","exec_vnode":"(n01:ncpus=56)"},'
    '"159.pbs":{"Job_Name":"other","job_state":"Q"}}}'
)
HOSTS = (
    '{"COMMAND":"lshosts","HOSTS":4,"RECORDS":['
    '{"HOST_NAME":"hosta","nprocs":"2","ncores":"8","nthreads":"2","server":"Yes"},'
    '{"HOST_NAME":"hostb","nprocs":"2","ncores":"8","nthreads":"2","server":"Yes"},'
    '{"HOST_NAME":"hostc","nprocs":"-","ncores":"-","nthreads":"-","server":"Yes"},'
    '{"HOST_NAME":"login","nprocs":"1","ncores":"4","nthreads":"1","server":"No"}]}'
)
BJOBS = (
    '{"COMMAND":"bjobs","JOBS":3,"RECORDS":['
    '{"JOBID":"58652","JOB_NAME":"envmatrix-0-b0000","STAT":"PSUSP","EXEC_HOST":""},'
    '{"JOBID":"58653","JOB_NAME":"envmatrix-0-b0001","STAT":"RUN","EXEC_HOST":"16*hosta"},'
    '{"JOBID":"58654","JOB_NAME":"ls -l","STAT":"RUN","EXEC_HOST":"hostb:hostb"}]}'
)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Replace commands by scripts that note their arguments and input, and answer; return what was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr("getpass.getuser", lambda: "me")

    def write(name, answer="", code=0, error=""):
        file = folder / name
        answers = (("", answer), (" >&2", error))
        prints = [f"printf '%s\\n' {shlex.quote(text)}{where}" for where, text in answers if text]
        note = f'printf \'%s\\n\' {name} "$@" "" >>{shlex.quote(str(tmp_path / "calls"))}'
        reads = [f"cat >{shlex.quote(str(tmp_path / 'input'))}"] if name == "bsub" else []
        file.write_text("\n".join(["#!/bin/sh", note, *reads, *prints, f"exit {code}", ""]))
        file.chmod(0o755)

    def called():
        text = (tmp_path / "calls").read_text()
        return [" ".join(map(shlex.quote, call.split("\n"))) for call in text.removesuffix("\n\n").split("\n\n")]

    return SimpleNamespace(write=write, called=called, input=tmp_path / "input")


def submission(tmp_path, **more):
    script = tmp_path / "script-1.sh"
    script.write_text("#!/bin/sh\necho 'block'\n")
    title = "envmatrix run first try, block 3"
    return Submission("envmatrix-0-b0003", title, script, tmp_path / "out 1.log", 5430, 56, 3, **more)


@pytest.mark.parametrize("system", [GridEngine, Pbs, Lsf])
def test_the_script_of_a_block_is_as_recorded_and_a_shell_can_read_it(tmp_path, monkeypatch, system):
    folder = tmp_path / "it's $here"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", "/home/o'neill")
    asked = {"modules": "a/1"}
    run = SimpleNamespace(
        name="r", design=make_design(make_plan(())), created="2026", launcher="batch", launcher_options=asked
    )
    made = BatchLauncher("batch", system(asked), SimpleNamespace(run=run, folder=RunFolder(folder)), silent, None)
    files = BlockFolder(folder / "batch" / "b0003")
    pending = PendingBlock(3, {}, files, files.start_new_attempt())
    text = made._script(pending, [])
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    (package,) = (folder / "batch").glob("block-*")
    for real, shown in ((sys.executable, "/this/python"), (package.name, "block-0"), (str(tmp_path), "/shared")):
        text = text.replace(real, shown)
    snapshot(f"block-{system.__name__.lower()}.sh", text)


def test_every_command_line_of_pbs_is_as_recorded(commands, tmp_path):
    commands.write("pbsnodes", NODES)
    commands.write("qselect", "157.pbs\n158.pbs\n159.pbs")
    commands.write("qstat", JOBS)
    commands.write("qsub", "160.pbs")
    commands.write("qdel")
    plain, asked = Pbs({}), Pbs({"queue": "workq", "resources": ("mem=8gb", "ncpus=28"), "hosts": ("n01", "n02")})
    assert plain.submit(submission(tmp_path)) == "160.pbs"
    asked.submit(submission(tmp_path))
    plain.submit(submission(tmp_path, avoid=("n02",)))
    plain.submit(submission(tmp_path, home="n02", avoid=("n01",)))
    plain.jobs()
    plain.delete(["157.pbs", "158.pbs"])
    snapshot("commands-of-pbs.txt", "\n".join(commands.called()).replace(str(tmp_path), "/shared") + "\n")


def test_every_command_line_of_lsf_is_as_recorded(commands, tmp_path):
    commands.write("lshosts", HOSTS)
    commands.write("bjobs", BJOBS)
    commands.write("bsub", "Job <58655> is submitted to default queue <normal>.")
    commands.write("bkill")
    asked = {"queue": "normal", "slots": "16", "resources": ("rusage[mem=8GB]",), "hosts": ("hosta", "hostb")}
    assert Lsf({}).submit(submission(tmp_path)) == "58655"
    assert commands.input.read_text() == "#!/bin/sh\necho 'block'\n"
    Lsf(asked).submit(submission(tmp_path))
    Lsf({}).submit(submission(tmp_path, avoid=("hosta",)))
    Lsf({}).submit(submission(tmp_path, home="hostb"))
    Lsf({}).jobs()
    Lsf({}).delete(["58652"])
    snapshot("commands-of-lsf.txt", "\n".join(commands.called()).replace(str(tmp_path), "/shared") + "\n")


def test_jobs_of_pbs_are_read_with_state_host_and_how_to_release_them(commands):
    commands.write("qselect", "157.pbs\n158.pbs\n159.pbs\n160.pbs")
    commands.write("qstat", JOBS, code=153, error="qstat: Unknown Job Id 160.pbs")
    assert Pbs({}).jobs() == [
        QueuedJob("157.pbs", "envmatrix-0-b0000", "H", "", "qrls 157.pbs"),
        QueuedJob("158.pbs", "envmatrix-0-b0001", "R", "n01"),
        QueuedJob("159.pbs", "other", "Q"),
    ]
    commands.write("qstat", HEAD + "}", code=153, error="qstat: Unknown Job Id 157.pbs")
    assert Pbs({}).jobs() == [], "all have ended since"
    commands.write("qstat", HEAD + "}", code=255, error="Connection refused\nqstat: cannot connect to server pbs")
    assert Pbs({}).jobs() is None
    commands.write("qselect", code=1)
    assert Pbs({}).jobs() is None


def test_jobs_of_lsf_are_read_with_state_host_and_how_to_release_them(commands):
    commands.write("bjobs", BJOBS)
    assert Lsf({}).jobs() == [
        QueuedJob("58652", "envmatrix-0-b0000", "PSUSP", "", "bresume 58652"),
        QueuedJob("58653", "envmatrix-0-b0001", "RUN", "hosta"),
        QueuedJob("58654", "ls -l", "RUN", "hostb"),
    ]
    commands.write("bjobs", code=255, error="No unfinished job found")
    assert Lsf({}).jobs() == []
    commands.write("bjobs", code=255, error="Failed in an LSF library call: LIM is down; try later")
    assert Lsf({}).jobs() is None


def test_hosts_that_do_not_answer_or_were_not_asked_for_are_left_out(commands):
    said = []
    commands.write("pbsnodes", NODES)
    commands.write("lshosts", HOSTS)
    hosts = Pbs({}).hosts(said.append)
    assert {name: (len(host.cpus), len(host.physical_cpus)) for name, host in hosts.items()} == {
        "n01": (56, 56), "n02": (56, 56),
    }  # fmt: skip
    hosts = Lsf({}).hosts(said.append)
    assert {name: (len(host.cpus), len(host.physical_cpus)) for name, host in hosts.items()} == {
        "hosta": (32, 16), "hostb": (32, 16),
    }  # fmt: skip
    assert said == [f"host {name} is left out: it does not answer" for name in ("n03", "n04", "hostc")]
    assert set(Lsf({"hosts": ("hostb",)}).hosts(silent)) == {"hostb"}
    with pytest.raises(EngineError, match="no host answers: n03"):
        Pbs({"hosts": ("n03",)}).hosts(silent)
    with pytest.raises(EngineError, match=r"no host is left to run on \(n01, n02 failed\)"):
        Pbs({}).places(submission(commands.input.parent, avoid=("n01", "n02")))


@pytest.mark.parametrize(
    ("kind", "asked", "words"),
    [
        (PbsKind, {"queue": "-x"}, "--queue: '-x' is nothing that qsub takes"),
        (PbsKind, {"resources": ("mem=8gb;id",)}, "--resources: 'mem=8gb;id' is nothing that qsub takes"),
        (PbsKind, {"hosts": ("a b",)}, "--hosts: 'a b' is nothing that qsub takes"),
        (LsfKind, {"slots": "many"}, "--slots: 'many' is no number of job slots"),
        (LsfKind, {"resources": ("-x",)}, "--resources: '-x' is nothing that bsub takes"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_built(commands, kind, asked, words):
    commands.write("pbsnodes", NODES)
    commands.write("lshosts", HOSTS)
    for name in ("qsub", "qselect", "bsub", "bjobs"):
        commands.write(name)
    with pytest.raises(InputError) as caught:
        kind().check_and_find_host(None, asked, (), 1, silent)
    assert words in str(caught.value)


def test_a_machine_without_the_commands_says_which_are_missing(commands, monkeypatch):
    monkeypatch.setenv("PATH", str(commands.input.parent / "bin"))
    commands.write("qsub")
    assert PbsKind().unavailable() == "no `qselect` and `pbsnodes` on PATH: run envmatrix on a submit host of PBS"
    with pytest.raises(EngineError, match="LSF cannot be used: no `bsub` and `bjobs` and `lshosts` on PATH"):
        LsfKind().check_and_find_host(None, {}, (), 1, silent)
    commands.write("qselect")
    commands.write("pbsnodes", code=1, error="pbsnodes: Connection refused")
    assert PbsKind().unavailable() == "its master does not answer: pbsnodes: Connection refused"


def test_what_never_ran_on_a_real_system_says_that_it_is_experimental(capsys):
    assert main(["list", "launchers"]) == 0
    told = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("experimental")}
    assert told == {"pbs", "lsf", "kubernetes"}
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    assert "with --launcher lsf (experimental):" in capsys.readouterr().out


def test_blocks_that_keep_ending_stop_the_run_and_its_other_jobs(tmp_path):
    system, said, deleted = Pbs({}), [], []
    system.delete = deleted.extend
    run = SimpleNamespace(
        name="r", design=make_design(make_plan(())), created="2026", launcher="pbs", launcher_options={}
    )
    made = BatchLauncher("pbs", system, SimpleNamespace(run=run, folder=RunFolder(tmp_path)), said.append, None)
    files = [BlockFolder(tmp_path / "pbs" / f"b{block:04d}") for block in range(2)]
    lost, other = (PendingBlock(block, {}, files[block], files[block].start_new_attempt()) for block in range(2))
    made._watch(other, "8.pbs")
    for _ in range(2):
        made._watch(lost, "7.pbs")
        made._set_aside(lost, made._loss(lost, None))
    made._watch(lost, "7.pbs")
    with pytest.raises(EngineError, match="3 blocks in a row ended without one finished trial") as caught:
        made._set_aside(lost, made._loss(lost, None))
    assert deleted == ["8.pbs"]
    assert str(lost.files.path) in caught.value.remedy
    assert (lost.files.has_ended(1), other.files.has_ended(1)) == (True, True)


@pytest.fixture
def connect(tmp_path, monkeypatch):
    """Replace ssh by a shell on this machine; return a function that submits a script to a system."""
    (tmp_path / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def submit(system, script, **more):
        job = submission(tmp_path, **more)
        job.script.write_text(script)
        return system.submit(job)

    return submit


def test_a_host_has_one_connection_and_a_block_returns_to_its_own(connect):
    system, waits = Ssh({"hosts": ("a", "b", "a")}), "cat >/dev/null"
    assert system.width == 2
    assert connect(system, waits) == "a"
    assert ([job.host for job in system.jobs()], system.takes("a", {}), system.takes("", {})) == (["a"], False, True)
    assert connect(system, waits, avoid=("a",)) == "b"
    assert not system.takes("", {})
    system.delete(["a"])
    assert (system.takes("a", {}), system.takes("", {"a": "it broke"})) == (True, False)
    assert connect(system, waits, home="a") == "a"
    with pytest.raises(EngineError, match=r"no host is left to run on \(a: it broke; b: so did this\)"):
        system.takes("", {"a": "it broke", "b": "so did this"})
    system.close()
    assert system.jobs() == []


@pytest.mark.parametrize(
    ("script", "cause", "text", "bad_node"),
    [
        ("exit 66", "exit 66", "the node cannot write to the results folder", "a"),
        ("echo Broken pipe; exit 255", "exit 255", "the connection ended: Broken pipe", "a"),
        ("exit 75", "exit 75", "the job started again on another node than the one that began its block", ""),
        ("exit 3", "exit 3", "its block runner ended with status 3", ""),
    ],
)
def test_a_host_is_left_out_if_it_caused_the_end_of_its_connection(connect, script, cause, text, bad_node):
    system = Ssh({"hosts": "a"})
    connect(system, script)
    while system.jobs():
        pass
    loss = system.loss("a")
    assert (loss.cause, loss.text, loss.bad_node) == (cause, text, bad_node)
    assert loss.excused is (script != "exit 3")
