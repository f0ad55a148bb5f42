"""Agents: `envmatrix mcp` as a real process, asked by the SDK's own client over standard input and output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envmatrix.__main__ import main
from envmatrix.api import run_results
from envmatrix.api.mcp_tools import MOST_CHARACTERS, ServedRuns, _bench_arguments
from envmatrix.api.runs import load
from envmatrix.cli.command_table import parse
from envmatrix.errors import InputError
from envmatrix.report.formats.json_file import summary_to_json
from envmatrix.results import RunFolder
from envmatrix.stats.attribution.explanation import to_json
from tests.synthetic import Machine, copied, make_plan, write_run
from tests.unit.test_extensions import MATRIX, PLUGINS, WORK

pytest.importorskip("mcp.server.mcpserver")
import anyio
from mcp import Client, StdioServerParameters, stdio_client

ROOT = Path(__file__).parents[2]
READERS = {"list_runs", "run_status", "report", "explain", "compare"}
MACHINE = Machine({"fast": 1.2})
#: Starts the command as its script does, without the working folder on the path.
COMMAND = ("-c", "import sys; sys.path.remove(''); from envmatrix.__main__ import main; sys.exit(main())", "mcp")
SLOW_WORK = "import time; time.sleep(1)\n"


def variables(folder):
    paths = (ROOT, PLUGINS, os.environ.get("PYTHONPATH", ""))
    return {
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path), "ENVMATRIX_CACHE": str(folder / "cache"),
        "TOY_PYTHON": sys.executable,
    }  # fmt: skip


def with_client(folder, talk, *options):
    """Start the server in ``folder`` and return what ``talk`` returns of its client, and the server's stderr."""

    async def session():
        server = StdioServerParameters(
            command=sys.executable, args=[*COMMAND, *options], cwd=folder, env=variables(folder)
        )
        with (folder / "stderr").open("w") as errors:
            async with Client(stdio_client(server, errlog=errors)) as client:
                return await talk(client)

    return anyio.run(session), (folder / "stderr").read_text()


async def ask(client, tool, **arguments):
    """Return the text of an error, or the document of an answer, which is also its text."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    if result.is_error:
        return content.text
    assert json.loads(content.text) == result.structured_content
    return result.structured_content


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with runs, a damaged one, a search, a link, and a run outside of the results."""
    here = tmp_path_factory.mktemp("runs")
    one = write_run(here / "results" / "one", make_plan(("fast",)), MACHINE, 8)
    copied(one, "two")
    damaged = copied(one, "damaged")
    damaged.trials_file.write_text(damaged.trials_file.read_text().replace('"outcome":"ok"', '"outcome":"fine"', 1))
    (here / "results" / "search").mkdir()
    (here / "results" / "search" / "study.json").write_text("{}")
    write_run(here / "outside", make_plan(("fast",)), MACHINE, 8)
    (here / "results" / "link").symlink_to(here / "outside")
    os.utime(one.run_file, (2e9, 2e9))
    return here


def test_an_agent_gets_what_the_commands_print(runs):
    async def talk(client):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        asked = [
            await ask(client, "list_runs"),
            await ask(client, "run_status"),
            await ask(client, "report", run="one"),
            await ask(client, "explain", run="one", environment="fast"),
            await ask(client, "compare", old="one", environments=["baseline", "fast"], allowed="3%"),
            await ask(client, "compare", old="one", new="two"),
        ]
        return tools, asked

    (tools, found), errors = with_client(runs, talk)
    results = runs / "results"
    assert tools.keys() == READERS
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools.values())
    listed, status, report, explained, compared, two = found
    assert listed["runs"][0] == "one"
    assert set(listed["runs"]) == {"one", "two", "damaged"}
    assert listed["searches"] == ["search"]
    assert (status["run"], status["running"], status["blocks"], status["trials"]) == ("one", False, 8, {"ok": 24})
    whole = json.loads(json.dumps(summary_to_json(load("one", results=results).summary)))
    assert {name: value for name, value in report.items() if name != "left_out"}.items() <= whole.items()
    assert report["best"][0]["environment"] == "fast"
    why, silent = run_results.explain("one", "fast", results=results)
    assert explained == json.loads(json.dumps({"why": [to_json(one) for one in why], "not_explained": silent}))
    assert compared == json.loads(
        json.dumps(run_results.compare("one", environments="baseline,fast", allowed="3%", results=results).to_json())
    )
    assert two["comparisons"]
    assert errors == ""
    assert not (results / "one" / "summary.json").exists(), "reading writes nothing"


def test_a_client_reaches_only_runs_of_the_folder_and_is_told_what_is_wrong(runs):
    elsewhere = ["../outside", str(runs / "outside"), "link", "", ".", "..", "one/../../outside", "one/", "ones\0"]

    async def talk(client):
        found = {}
        for tool in READERS - {"list_runs"}:
            word = "old" if tool == "compare" else "run"
            more = {"environments": ["baseline", "fast"]} if tool == "compare" else {}
            names = [*elsewhere, "oen", "search", "damaged"]
            found[tool] = [await ask(client, tool, **{word: name}, **more) for name in names]
        return [*found.values(), [await ask(client, "compare", old="one", new=name) for name in elsewhere]]

    (*found, newer), errors = with_client(runs, talk)
    assert all(f"no run {name!r} in " in text for name, text in zip(elsewhere, newer, strict=True)), newer
    for *refused, misspelt, search, damaged in found:
        assert all(f"no run {name!r} in " in text for name, text in zip(elsewhere, refused, strict=True)), refused
        assert "-> did you mean 'one'?" in misspelt
        assert "is a search (`envmatrix tune`), not a run" in search
        assert re.search(r"damaged/trials.jsonl:1:.*\n  -> ", damaged, re.DOTALL), damaged
        assert "Traceback" not in "".join([misspelt, search, damaged])
    assert errors == ""


def test_mistakes_of_a_client_are_told(runs):
    async def talk(client):
        return [
            await ask(client, "explain", run="one", environment="fats"),
            await ask(client, "compare", old="one"),
            await ask(client, "compare", old="one", new="two", allowed="150%"),
            await ask(client, "report", run="one", part="efects"),
            await ask(client, "report", run=["one"]),
            await ask(client, "list_runs"),
        ]

    (*mistakes, listed), errors = with_client(runs, talk)
    for text, words in zip(
        mistakes,
        ["did you mean 'fast'?", "two environments", "allowed", "did you mean 'effects'?", "string"],
        strict=True,
    ):
        assert words in text
    assert listed["runs"], "it goes on"
    assert "Traceback" not in errors


def test_a_report_that_is_too_long_is_given_in_parts(tmp_path):
    write_run(tmp_path / "one", make_plan(tuple(f"e{number}" for number in range(12))), MACHINE, 3)
    served, whole = ServedRuns(tmp_path), summary_to_json(load("one", results=tmp_path).summary)
    first = served.report("one")
    assert "effects" in first["left_out"]
    assert {"best", "warnings"} < first.keys()
    assert {*first, *first["left_out"]} == {*whole, "left_out"}
    assert len(json.dumps(first)) <= MOST_CHARACTERS + 1000
    parts, start = [], 0
    while start is not None:
        page = served.report("one", part="effects", first=start)
        assert len(json.dumps(page)) <= MOST_CHARACTERS + 1000
        parts, start = [*parts, *page["effects"]], page["next"]
    assert parts == whole["effects"]
    assert served.report("one", part="effects", first=10**9)["effects"] == []
    assert served.report("one", part="effects", first=-1)["effects"][0] == whole["effects"][0]
    assert served.report("one", part="looks") == {"looks": whole["looks"]}


def test_an_answer_that_is_too_long_says_how_to_ask_for_less(tmp_path, monkeypatch):
    write_run(tmp_path / "one", make_plan(("fast",)), MACHINE, 8)
    monkeypatch.setattr("envmatrix.api.mcp_tools.MOST_CHARACTERS", 20)
    for ask_for, remedy in (
        (lambda served: served.explain("one"), "name one environment"),
        (lambda served: served.compare("one", environments=["baseline", "fast"]), "name the environments"),
        (lambda served: served.report("one", part="data"), "summary.json"),
    ):
        with pytest.raises(InputError, match="at most 20 fit") as caught:
            ask_for(ServedRuns(tmp_path))
        assert remedy in caught.value.remedy


def test_waiting_for_a_run_is_no_interim_analysis_but_reading_its_report_is(tmp_path):
    folder = write_run(tmp_path / "one", make_plan(("fast",)), MACHINE, 8)
    other = RunFolder(folder.path)
    other.lock()
    try:
        served = ServedRuns(tmp_path)
        assert served.run_status("one")["running"] is True
        assert list(folder.history()) == []
        served.report("one")
        assert [change.looked for change in folder.history()] == [8]
    finally:
        other.unlock()
    assert served.run_status("one")["running"] is False


def start_server(folder, *options):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    argv = [sys.executable, *COMMAND, *options]
    return subprocess.Popen(argv, cwd=folder, env={**os.environ, **variables(folder)}, **pipes)


def wait_until(done):
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def request(number, method, **params):
    return (json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n").encode()


HELLO = request(
    1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"}
)


@pytest.mark.parametrize("reads", [True, False])
def test_a_client_that_hangs_up_ends_the_server_at_once(runs, reads):
    with start_server(runs) as server:
        server.stdin.write(HELLO)
        server.stdin.flush()
        assert b'"serverInfo"' in server.stdout.readline()
        if not reads:  # it does not wait for the answer
            server.stdin.write(request(2, "tools/call", name="report", arguments={"run": "one"}))
            server.stdin.flush()
            server.stdout.close()
        server.stdin.close()
        assert server.wait(30) == 0
        assert server.stderr.read() == b""


def test_what_is_no_protocol_does_not_end_the_server(runs):
    with start_server(runs) as server:
        server.stdin.write(b"{]\n\xff\n" + HELLO)
        server.stdin.flush()
        lines = [server.stdout.readline()]
        while b'"serverInfo"' not in lines[-1]:
            assert lines[-1]
            lines.append(server.stdout.readline())
        server.stdin.close()
        assert server.wait(30) == 0
        assert all(json.loads(line)["jsonrpc"] == "2.0" for line in lines)


def test_a_signal_ends_the_server_without_a_traceback(runs):
    with start_server(runs) as server:
        server.stdin.write(HELLO)
        server.stdin.flush()
        server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 130
        assert server.stderr.read() == b"envmatrix: interrupted\n"


def test_a_missing_sdk_and_a_missing_folder_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["mcp"]) == 2
    assert "no such folder: results" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert main(["mcp"]) == 2
    told = capsys.readouterr().err
    assert f"-> {sys.executable} -m pip install 'envmatrix[mcp]'" in told


@pytest.fixture
def project(tmp_path):
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "work.py").write_text(WORK)
    (tmp_path / "yaml.py").write_text("raise SystemExit('a module of the working folder')\n")
    (tmp_path / "matrix.yaml").write_text(MATRIX.replace("PROGRAM", "program"))
    return tmp_path


async def wait_for_end(client, run):
    deadline = time.monotonic() + 60
    while (status := await ask(client, "run_status", run=run))["running"]:
        assert time.monotonic() < deadline, status
        await anyio.sleep(0.2)
    return status


def test_an_agent_may_run_a_design_if_it_is_allowed_to(project):
    async def talk(client):
        tools = {tool.name: tool.annotations.read_only_hint for tool in (await client.list_tools()).tools}
        begun = await ask(client, "start_run", name="mine", budget="1m")
        ended = await wait_for_end(client, "mine")
        again = await ask(client, "start_run", name="mine")
        return tools, begun, ended, again, await ask(client, "report"), await ask(client, "stop_run")

    (tools, begun, ended, again, report, stopped), _ = with_client(project, talk, "--allow-run")
    assert tools == {**dict.fromkeys(READERS, True), "start_run": False, "stop_run": False}
    assert begun["run"] == "mine"
    assert (ended["exit_code"], ended["blocks"], ended["has_report"]) == (0, 2, True), ended
    assert ended["messages"][-1].startswith("mine: ")
    assert "fast" not in "".join(ended["messages"]), "waiting for a run tells no results"
    assert "there is already a run 'mine'" in again
    assert report["run"] == "mine"
    assert "no run that was started here is being measured" in stopped


def test_an_agent_stops_what_it_started_and_a_hang_up_does_so_too(project):
    work = project / "program" / "work.py"
    work.write_text(SLOW_WORK + WORK)
    matrix = project / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("max_blocks: 2", "max_blocks: 99"))

    async def talk(client):
        await ask(client, "start_run", name="one")
        second = await ask(client, "start_run", name="other")
        stopped = await ask(client, "stop_run")
        status = await ask(client, "run_status", run="one")
        await ask(client, "start_run", name="two")
        return second, stopped, status

    (second, stopped, status), _ = with_client(project, talk, "--allow-run")
    assert "run 'one' is being measured" in second
    assert (stopped["running"], status["running"]) == (False, False)
    assert any("to continue: envmatrix resume one" in line for line in stopped["messages"]), stopped
    wait_until(lambda: not RunFolder(project / "results" / "two").is_written())
    assert not (project / "results" / "other").exists()


def test_a_killed_server_ends_its_run_with_a_report(project):
    """Guards against a run that waits for its own supervisor, which it took for that of an earlier run, to end."""
    (project / "program" / "work.py").write_text(SLOW_WORK + WORK)
    matrix = project / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("max_blocks: 2", "max_blocks: 99"))
    folder = RunFolder(project / "results" / "one")
    with start_server(project, "--allow-run") as server:
        server.stdin.write(HELLO + request(2, "tools/call", name="start_run", arguments={"name": "one"}))
        server.stdin.flush()
        assert [b'"error"' in server.stdout.readline() for _ in range(2)] == [False, False]
        wait_until(lambda: folder.trials_file.exists())
        server.kill()
    wait_until((folder.path / "summary.json").exists)


def test_a_mistake_in_a_run_to_start_is_told(project):
    (project / "results").mkdir()

    async def talk(client):
        return [
            await ask(client, "start_run", name="a", design="defualt"),
            await ask(client, "start_run", name="a", environments=["fats"]),
            await ask(client, "start_run", name="a", budget="soon"),
            await ask(client, "start_run", name="a", program=["nosuch-program"]),
            await ask(client, "start_run", name="../a"),
            await ask(client, "start_run", name="a", design="--results=/"),
            await ask(client, "start_run", name="a", program=["true", "\0"]),
            await ask(client, "start_run"),
            await ask(client, "run_status", run="a"),
        ]

    (*mistakes, status), errors = with_client(project, talk, "--allow-run")
    words = (
        "did you mean 'default'?", "did you mean 'fast'?", "'soon' is no duration", "nosuch-program",
        "'../a' is not a valid name", "'--results=/' is not a valid name", "null character", "name",
    )  # fmt: skip
    for text, word in zip(mistakes, words, strict=True):
        assert word in text
        assert "Traceback" not in text
    assert (status["running"], status["exit_code"]) == (False, 2)
    assert list((project / "results").iterdir()) == []
    assert "Traceback" not in errors


@pytest.mark.parametrize("value", ["--results=/", "-x", "a b", "a;b", "$(a)", "a=b", "a\nb", "é", '"'])
def test_no_value_becomes_an_option_of_its_own_or_reaches_a_shell(value):
    results = Path("/somewhere")
    found = parse(_bench_arguments(results, "name", None, ["python", value], [value], "1m"))
    assert (found.name, found.results, found.budget, found.design) == ("name", results, 60.0, None)
    assert found.command == ["python", value]
    assert found.environments == [value.strip()]
    for name, design in ((value, None), ("name", value)):
        with pytest.raises(InputError, match="is not a valid name"):
            _bench_arguments(results, name, design, None, None, "1m")
