"""The Python interface in real venvs: README's example, a notebook's thread, a run resumed in the same process."""

import textwrap
import threading
from pathlib import Path

import pytest

import envmatrix

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]
README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.fixture
def here(project, monkeypatch):
    monkeypatch.chdir(project.folder)
    matrix = project.folder / "matrix.yaml"
    environments = "  tcmalloc: {malloc: jemalloc}\nworkloads:"
    quick = "  quick: {environments: [tcmalloc], workloads: tiny, min_blocks: 2, max_blocks: 2}\n  lying:"
    matrix.write_text(matrix.read_text().replace("workloads:", environments, 1).replace("  lying:", quick))
    return project


def readme_lines():
    section = README.partition("## From Python\n")[2].partition("\n## ")[0]
    return textwrap.dedent("\n".join(line for line in section.splitlines() if line.startswith("    ") or not line))


def test_the_lines_of_the_readme_run_as_they_stand(here, capfd):
    assert len(readme_lines().split("\n\n    import")[0].splitlines()) >= 10
    told = {}
    exec(compile(readme_lines(), "README.md", "exec"), told)
    assert told["result"].outcomes == {"ok": 6}
    assert {row["environment"] for row in told["table"]} == {"tcmalloc", "control"}
    assert len(told["compared"].items) == 1
    assert "block 1 of up to 2" in capfd.readouterr().out, "say=print tells the progress"
    assert (told["result"].folder / "report.html").exists()


def test_a_run_in_a_thread_is_silent_and_goes_on_in_the_same_process(here, capfd):
    found = []

    def work():
        first = envmatrix.run("quick", environments="one-thread", max_blocks=1, results="elsewhere", name="mine")
        found.extend([first, envmatrix.resume(first)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    first, again = found
    assert first.folder == again.folder == Path("elsewhere/mine")
    assert "1 blocks" in first.why
    assert again.outcomes == {"ok": 3}
    assert {effect.environment for effect in again.effects} == {"one-thread", "control"}
    assert all(effect.low is None for effect in again.effects), "one block is no claim"
    assert again.best is None
    assert capfd.readouterr() == ("", "")


def test_a_run_that_cannot_be_is_an_error_of_the_package(here):
    with pytest.raises(envmatrix.EngineError, match="cannot be used here"):
        envmatrix.run("quick", engines="enroot")
    result = envmatrix.run("lying")
    assert result.exit_code == 3
    assert result.outcomes["invalid"] == 1
