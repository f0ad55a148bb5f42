"""A block over several nodes: its script, its work folders, and which node a lost job blames."""

import os
import re
import subprocess

import pytest

from envmatrix.block.block_instructions import BlockOrder, Part, TrialOrder
from envmatrix.block.process import Place
from envmatrix.errors import InputError
from envmatrix.launchers.base import check_race
from envmatrix.launchers.block_files import BlockFolder
from envmatrix.launchers.block_start import copy_package
from envmatrix.launchers.catalog import LAUNCHERS, check_span
from envmatrix.launchers.slurm.client import expand, queued_job, read_queue
from envmatrix.launchers.slurm.job_loss import explain_loss
from envmatrix.launchers.slurm.launcher import nodes_of_block
from envmatrix.launchers.slurm.script import BlockJob, block_script
from envmatrix.matrix import Slurm

#: Stand-ins for two Slurm commands: srun starts the tasks here, one after the other, each with a node's name.
SRUN = """#!/bin/sh
out=/dev/stdout
while :; do case $1 in
  --ntasks=*) count=${1#*=} ;;
  --nodelist=*) names=${1#*=} ;;
  --output=*) out=${1#*=} ;;
  --*) ;;
  *) break ;;
esac; shift; done
case $* in *" look "*) [ -e "$0.saw" ] && exec cat "$0.saw" ;; esac
task=0
for name in $(echo "$names" | tr , ' '); do
  SLURM_PROCID=$task SLURMD_NODENAME=$name "$@" >>"$out" || exit
  task=$((task + 1))
done
"""
SCONTROL = """#!/bin/sh
case $* in
  *hostnames*) echo n1; echo n2 ;;
  *) echo "NodeName=n1 NodeAddr=10.0.0.1 NodeHostName=n1" ;;
esac
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []), ("n1", ["n1"]), ("n[1-2]", ["n1", "n2"]), ("n[08-10],m", ["n08", "n09", "n10", "m"]),
        ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"]), ("a-b,c[1]d", ["a-b", "c1d"]),
    ],
)  # fmt: skip
def test_slurms_short_form_of_node_names_is_read(text, names):
    assert expand(text) == names


def test_the_queue_names_every_node_of_a_job():
    assert read_queue("7|j|RUNNING|n[1-2]|None\n")[0].host == "n1,n2"


def test_blocks_go_round_the_listed_nodes_as_many_at_a_time_as_they_take():
    listed = ["n1", "n2", "n3", "n4", "n5"]
    assert [nodes_of_block(block, listed, 2) for block in range(3)] == ["n1,n2", "n3,n4", "n1,n2"]
    assert nodes_of_block(1, ["n1", "n2"], 1) == "n2"
    assert nodes_of_block(1, [], 2) == ""


def test_of_several_nodes_the_one_that_is_down_is_left_out():
    state = queued_job("7", "j", "NODE_FAIL", "n1,n2", "None")
    assert explain_loss(state, "", None, {"n2": "down*"}).bad_node == "n2"
    assert explain_loss(state, "", None, {}).bad_node == ""


def test_a_race_and_a_spread_that_the_launcher_cannot_do_are_refused():
    with pytest.raises(InputError, match="a race decides after every block"):
        check_race(race=True, width=2)
    check_race(race=True, width=1)
    with pytest.raises(InputError, match="'w' is spread over 3 nodes, and launcher here has one"):
        check_span(LAUNCHERS.make("here"), {"v": 1, "w": 3})
    check_span(LAUNCHERS.make("slurm"), {"v": 1, "w": 3})


@pytest.fixture
def shell(tmp_path):
    """Return a function that runs a script with sh and the two stand-ins: -> (status, files, the trial's log)."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    folder = tmp_path / "it's a block"

    def run(argv, needs=(), nodes=2, **options):
        files = BlockFolder(folder)
        attempt = files.start_new_attempt()
        trial = TrialOrder("t", "t", argv, {"A": "a b"}, 20.0, ["PATH"], Place((0,)), list(map(str, needs)), nodes)
        order = BlockOrder("run r, block 0", str(folder), attempt, [Part("t", [trial])], options.get("busy", 1.0))
        variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": "/"}
        text = block_script(BlockJob("j", order, copy_package(tmp_path), Slurm(), variables))
        files.order(attempt).write_text(order.text())
        assert f"#SBATCH --nodes={nodes}\n#SBATCH --ntasks={nodes}\n" in text
        (folder / "script.sh").write_text(text)
        environment = {"PATH": variables["PATH"], "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]"}
        done = subprocess.run(["sh", str(folder / "script.sh")], env=environment, check=False, timeout=60)
        log = folder / "t" / "log"
        return done.returncode, files, log.read_text() if log.exists() else ""

    return run


def test_each_node_is_started_once_and_told_where_it_stands_and_where_all_meet(shell):
    status, files, log = shell(["sh", "-c", 'echo "$A:$*"', "sh", "two words"])
    assert status == 0
    port = 20000 + 77 * 16
    assert log.splitlines() == [
        f"a b:two words --node-rank=0 --node-name=n1 --meet=10.0.0.1:{port}",
        f"a b:two words --node-rank=1 --node-name=n2 --meet=10.0.0.1:{port}",
    ]
    end = files.end("t")
    assert (end.node, end.exit.ok) == ("n1,n2", True)
    assert files.node == "n1,n2"


def test_each_node_is_looked_at_before_the_block(shell):
    _, files, _ = shell(["true"])
    first, second = files.end("t").checks
    for check in (first, second):
        assert check.load_1m is not None
        assert check.free_bytes > 2**20
        assert 0 <= check.busy <= 1
    assert "n2 before the block: {" in (files.path / "job-1.log").read_text()


def test_of_several_nodes_the_one_that_others_use_is_named_and_the_block_handed_back(shell, tmp_path):
    (tmp_path / "srun.saw").write_text(
        '{"rank": "1", "node": "n2", "missing": "", "seen": {"load_1m":0.1,"free_bytes":9,"busy":0.4,"throttled":null,'
        '"others":["stress"]}}\n{"rank": "0", "node": "n1", "missing": "", "seen": {"load_1m":0.1,"free_bytes":9,'
        '"busy":0.03,"throttled":null,"others":[]}}\n'
    )
    status, files, _ = shell(["true"], busy=0.1)
    assert (status, files.starts()) == (76, [])
    assert files.stop_status_node_and_path(1) == (76, "n2", '40 % of its CPUs are busy, these ran: ["stress"]')
    _, files, _ = shell(["true"])
    assert [(check.busy, check.others) for check in files.end("t").checks] == [(0.03, ()), (0.4, ("stress",))]


def test_a_task_that_fails_fails_the_trial(shell):
    status, files, _ = shell(["sh", "-c", "case $* in *=n2*) exit 3; esac", "sh"])
    assert status == 0
    assert files.end("t").exit.code == 3


def test_a_file_that_one_of_the_nodes_does_not_see_stops_the_job_and_names_that_node(shell, tmp_path):
    missing = tmp_path / "a file"
    status, files, _ = shell(["true"], needs=(missing,))
    assert status == 69
    assert files.stop_status_node_and_path(1) == (69, "n1", str(missing))
    assert files.starts() == []


def test_a_script_for_one_node_asks_slurm_nothing(tmp_path):
    order = BlockOrder("t", str(tmp_path), 1, [Part("t", [TrialOrder("t", "t", ["true"], {}, 1.0)])])
    text = block_script(BlockJob("j", order, tmp_path, Slurm(), {}))
    assert not re.search("srun|scontrol", text)
