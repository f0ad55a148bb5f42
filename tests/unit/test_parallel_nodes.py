"""One supervisor per node: the ranks it starts, the nodes' messages, and the node that is blamed for a failure."""

import json
import socket
import threading
from types import SimpleNamespace

import pytest

from bench import options as workload_options
from bench.errors import BenchError, RunError
from bench.parallel import launch, node_coordination
from envmatrix.evidence import checks
from envmatrix.evidence.trial_record import read_evidence
from envmatrix.trials.trial_evidence_verification import contradicting_ranks, verify_evidence
from tests.synthetic import make_environment


def options(**chosen):
    return {**workload_options.defaults(), "parallel": "ddp", **chosen}


def node(folder, index, count=2):
    return node_coordination.Node(index, count, f"n{index}", "localhost", 29500, str(folder / "record.json.nodes"))


def test_ranks_are_shared_out_in_the_order_of_the_nodes(tmp_path):
    assert [list(node(tmp_path, index, 3).ranks(6)) for index in range(3)] == [[0, 1], [2, 3], [4, 5]]


def test_the_first_node_gets_all_records_in_the_order_of_ranks(tmp_path):
    first, second = node(tmp_path, 0), node(tmp_path, 1)
    assert second.gather([{"rank": 2}, {"rank": 3}], 5) is None
    assert [record["rank"] for record in first.gather([{"rank": 0}, {"rank": 1}], 5)] == [0, 1, 2, 3]


def test_a_node_that_leaves_no_record_is_named(tmp_path):
    with pytest.raises(RunError, match=r"node 1 of 2 has left no record within 0.2 s"):
        node(tmp_path, 0).gather([], 0.2)


def test_what_an_earlier_start_left_is_not_taken_for_an_answer(tmp_path):
    node(tmp_path, 1).gather([{"rank": 1}], 5)
    first = node(tmp_path, 0)
    node(tmp_path, 1)  # it starts again
    with pytest.raises(RunError, match="no record"):
        first.gather([], 0.2)


def test_half_an_answer_is_none(tmp_path):
    first = node(tmp_path, 0)
    whole = json.dumps({"records": [{"rank": 1}]})
    (tmp_path / "record.json.nodes" / "node-1.json").write_text(whole[:-5])
    with pytest.raises(RunError, match="no record"):
        first.gather([], 0.2)


def test_the_node_that_lost_its_peer_waits_for_the_one_that_knows_and_both_say_the_same(tmp_path):
    first, second = node(tmp_path, 0), node(tmp_path, 1)
    late = threading.Timer(0.3, second.settle, (node_coordination.KILLED, "rank 1 on node n1 was killed"))
    late.start()
    assert (
        first.settle(node_coordination.LOST_A_PEER, "rank 0: Connection closed by peer")
        == "rank 1 on node n1 was killed"
    )
    late.join()
    assert second.settle(node_coordination.KILLED, "rank 1 on node n1 was killed") == "rank 1 on node n1 was killed"


def test_a_node_that_hears_nothing_tells_what_it_saw_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(node_coordination, "_VERDICT_S", 0.2)
    assert node(tmp_path, 0).settle(node_coordination.LOST_A_PEER, "my own words") == "my own words"


def test_an_error_of_a_supervisor_reaches_the_first_node(tmp_path):
    second = node(tmp_path, 1)
    with pytest.raises(RunError), second.telling():
        raise RunError("no data here")
    with pytest.raises(RunError, match="node n1: no data here"):
        node(tmp_path, 0).gather([], 5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"meet": None}, "wants one start on each node"),
        ({"node_rank": None}, "wants one start on each node"),
        ({"record": None}, "--record FILE"),
        ({"meet": "host"}, "HOST:PORT"),
        ({"meet": "host:0"}, "HOST:PORT"),
        ({"node_rank": 2}, "from 0 to 1"),
        ({"processes": 3}, "cannot be spread evenly over 2 nodes"),
        ({"nodes": 1}, "belong to --nodes above 1"),
    ],
)
def test_a_wrong_start_is_one_clear_line(tmp_path, given, words):
    arguments = {"node_rank": 0, "meet": "h:1", "node_name": None, "record": str(tmp_path / "r"), **given}
    chosen = options(nodes=given.get("nodes", 2), processes=given.get("processes", 2))
    with pytest.raises((BenchError, workload_options.OptionError), match=words):
        node_coordination.from_arguments(SimpleNamespace(**arguments), chosen)


def test_ways_that_cannot_be_spread_over_nodes_are_refused():
    broken = workload_options.broken_rules(options(parallel="ddp-pipeline", nodes=2, processes=2))
    assert ["nodes above 1 belong to" in rule.message for rule in broken] == [True]


class Store(dict):
    def set(self, key, text):
        self[key] = text.encode()

    def get(self, key):
        return self[key]


def test_the_interface_is_the_one_that_reaches_the_first_node():
    store = Store()
    meet = {"host": "localhost", "port": 29500, "node": "n", "first": False}
    assert (
        node_coordination.interface(store, meet) == node_coordination.interface(store, {**meet, "first": True}) == "lo"
    )
    assert store["envmatrix/first-node"] == socket.gethostbyname("localhost").encode()


def test_only_what_differs_from_rank_0_is_kept_of_a_ranks_evidence():
    first = {"openmp": {"library": "libgomp", "path": "/a"}, "torch": {"threads": 2}, "system": {"mhz": 1}, "n": None}
    other = {"openmp": {"library": "libomp", "path": "/a"}, "torch": {"threads": 2}, "system": {"mhz": 2}, "n": 1}
    assert launch.evidence_differences(first, other) == {"openmp": {"library": "libomp"}, "n": 1}
    assert launch.evidence_differences(first, first) == {}


def test_a_claim_must_hold_on_every_rank_and_the_one_that_breaks_it_is_named():
    ranks = [
        {"rank": 0, "evidence_differs": {}},
        {"rank": 1, "node": "n2", "evidence_differs": {"openmp": {"library": "libomp"}}},
    ]
    evidence = read_evidence({"openmp": {"library": "libgomp"}, "parallel": {"ranks": ranks}})
    promised = checks.parse_claims({"openmp": ["libgomp"], "threads": ["1"]})
    assert contradicting_ranks(promised, evidence) == ["rank 1 (node n2) claims openmp is libgomp, but it was libomp"]
    assert contradicting_ranks(promised, read_evidence({"openmp": {}})) == []
    environment = make_environment("fast", claims=promised[:1], variables={}, preload=())
    assert verify_evidence(environment, evidence).wrong == (
        "rank 1 (node n2) claims openmp is libgomp, but it was libomp",
    )
