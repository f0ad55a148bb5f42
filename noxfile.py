"""One session a task; each only calls the `envmatrix` command or a checker. `nox -l` lists them."""

from __future__ import annotations

import json

import nox

nox.needs_version = ">=2024.4.15"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["tests"]

PROJECT = nox.project.load_toml("pyproject.toml")
PINNED = ("-c", "tests/constraints.txt")


def install(session: nox.Session, *groups: str) -> None:
    wanted = nox.project.dependency_groups(PROJECT, *groups) if groups else ()
    session.install("--quiet", *PINNED, "-e", ".", *wanted)


def envmatrix(session: nox.Session, *command: str) -> None:
    install(session)
    # After Ctrl-C nox would wait for 0.5 s and kill it: it ends its trial and writes the report first.
    session.run("envmatrix", *command, *session.posargs, interrupt_timeout=60)


@nox.session
def bench(session: nox.Session) -> None:
    """Run a design and say what each environment gains (the main job)."""
    envmatrix(session, "bench")


@nox.session
def resume(session: nox.Session) -> None:
    """Go on with a run that was stopped, killed or cut short."""
    envmatrix(session, "resume")


@nox.session
def report(session: nox.Session) -> None:
    """Make the report of a run again."""
    envmatrix(session, "report")


@nox.session
def build(session: nox.Session) -> None:
    """Build environments: venvs, Docker images, Apptainer images."""
    envmatrix(session, "build")


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve and pin what images and libraries are made of."""
    envmatrix(session, "lock")


@nox.session
def doctor(session: nox.Session) -> None:
    """Look at this machine: what disturbs a benchmark, what is missing."""
    envmatrix(session, "doctor")


@nox.session
def selftest(session: nox.Session) -> None:
    """Count how often two identical systems are called different."""
    envmatrix(session, "selftest")


@nox.session
def statistics(session: nox.Session) -> None:
    """Simulate the figures of docs/statistics.md: false alarms, power, races; with --tune those of docs/tune.md."""
    install(session, *(["tests"] if "--tune" in session.posargs else []))  # with Optuna, whose TPE is one of its rows
    session.run("python", "-m", "validation.simulation", *(session.posargs or ["--runs", "20000"]))


@nox.session
def selfbench(session: nox.Session) -> None:
    """Measure this tool itself: overhead per trial, planning, reporting, disk."""
    install(session, "tests")
    session.run(
        "python", "-m", "validation.selfbench", *session.posargs, interrupt_timeout=60
    )  # it ends its trial first


@nox.session
def installed(session: nox.Session) -> None:
    """Measure from the installation of the wheel to the first table of a program of 5 seconds."""
    install(session, "tests")
    session.run("python", "-m", "tests.installed", *session.posargs)


@nox.session
def storm(session: nox.Session) -> None:
    """Kill runs at random moments, resume them, and count what was lost, doubled or left running."""
    install(session, "tests")
    session.run("python", "-m", "validation.storm", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Make the documentation as a site in docs/_site; a warning, such as a link to nowhere, is an error."""
    install(session, "docs")
    kept = f"{session.create_tmp()}/doctrees"  # Sphinx' own notes: no part of the site, which the sdist holds
    session.run("sphinx-build", "--fail-on-warning", "--keep-going", "-d", kept, "docs", "docs/_site", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests: unit, then everything real that this machine has."""
    install(session, "tests")
    found = session.run("python", "tests/torch_python.py", silent=True, stderr=None)
    lines = [line for line in str(found).splitlines() if line.startswith("{")]
    env = json.loads(lines[-1]) if lines else {}
    env["PYTHONDONTWRITEBYTECODE"] = ""  # else each of the commands that tests start would compile all of it anew
    if session.posargs:
        session.run("pytest", *session.posargs, env=env)
        return
    # What a shared machine disturbed may be tried once more; the summary names it.
    again = ("--reruns=1", "-raR")
    unit = ("tests/unit", "--numprocesses=auto")
    # What is real waits half of its time: two lanes, and what shares an engine or daemons (tests/conftest.py) in one.
    real = ("tests", "--ignore=tests/unit", "--numprocesses=2", "--dist=loadscope", "--durations=25")
    failed = 0
    for lane in (unit, real):  # a failure of the first does not hide those of the second
        try:
            session.run("pytest", *lane, *again, env=env)
        except nox.command.CommandFailed:
            failed += 1
    if failed:
        session.error("tests failed: see above")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types."""
    install(session, "tests", "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("mypy", "--python-version", "3.9", "-p", "bench")
