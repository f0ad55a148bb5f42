"""Nox sessions for development: each runs the `envmatrix` command or a checker. `nox -l` lists them."""

from __future__ import annotations

import json
import os

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
    # Nox would kill it 0.5 s after Ctrl-C; it needs time to end its trial and write the report.
    session.run("envmatrix", *command, *session.posargs, interrupt_timeout=60)


@nox.session
def bench(session: nox.Session) -> None:
    """Run a design and report the gain of each environment (the main session)."""
    envmatrix(session, "bench")


@nox.session
def resume(session: nox.Session) -> None:
    """Continue a run that was stopped, killed or cut short."""
    envmatrix(session, "resume")


@nox.session
def report(session: nox.Session) -> None:
    """Regenerate the report of a run."""
    envmatrix(session, "report")


@nox.session
def build(session: nox.Session) -> None:
    """Build environments: venvs, Docker images, Apptainer images."""
    envmatrix(session, "build")


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve and pin the contents of images and libraries."""
    envmatrix(session, "lock")


@nox.session
def doctor(session: nox.Session) -> None:
    """Check this machine: what disturbs a benchmark, what is missing."""
    envmatrix(session, "doctor")


@nox.session
def selftest(session: nox.Session) -> None:
    """Count how often two identical environments are reported as different."""
    envmatrix(session, "selftest")


@nox.session
def statistics(session: nox.Session) -> None:
    """Simulate false alarms, power and races for the statistics docs; with --tune, those of docs/tune.md."""
    install(session, *(["tests"] if "--tune" in session.posargs else []))  # Optuna's TPE is one of the rows
    session.run("python", "-m", "validation.simulation", *(session.posargs or ["--runs", "20000"]))


@nox.session
def selfbench(session: nox.Session) -> None:
    """Benchmark envmatrix itself: overhead per trial, planning, reporting, disk."""
    install(session, "tests")
    session.run(
        "python", "-m", "validation.selfbench", *session.posargs, interrupt_timeout=60
    )  # it ends its trial first


@nox.session
def installed(session: nox.Session) -> None:
    """Time a first use: from installing the wheel to the first table for a 5-second program."""
    install(session, "tests")
    session.run("python", "-m", "tests.installed", *session.posargs)


@nox.session
def storm(session: nox.Session) -> None:
    """Kill runs at random moments, resume them, and count lost, duplicated and leftover items."""
    install(session, "tests")
    session.run("python", "-m", "validation.storm", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site in docs/_site; warnings, such as broken links, are errors."""
    install(session, "docs")
    kept = f"{session.create_tmp()}/doctrees"  # outside docs/_site, which is part of the sdist
    session.run("sphinx-build", "--fail-on-warning", "--keep-going", "-d", kept, "docs", "docs/_site", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the unit tests, then the tests of every real engine and tool that this machine has."""
    install(session, "tests")
    found = session.run("python", "tests/torch_python.py", silent=True, stderr=None)
    lines = [line for line in str(found).splitlines() if line.startswith("{")]
    env = json.loads(lines[-1]) if lines else {}
    env["PYTHONDONTWRITEBYTECODE"] = ""  # otherwise every command that tests start would compile its modules
    if session.posargs:
        session.run("pytest", *session.posargs, env=env)
        return
    # Rerun failed tests once, as a shared machine may disturb them; the summary says why.
    again = ("--reruns=1", "--rerun-show-tracebacks", "-raR")
    unit = ("tests/unit", f"--numprocesses={(os.cpu_count() or 1) + 2}")  # some wait for processes that they start
    # Three workers, as real tests mostly wait; tests that share an engine or daemon share one (tests/conftest.py).
    real = ("tests", "--ignore=tests/unit", "--numprocesses=3", "--dist=loadscope", "--durations=25")
    failed = 0
    for lane in (unit, real):  # run both even if the first fails
        try:
            session.run("pytest", *lane, *again, env=env)
        except nox.command.CommandFailed:
            failed += 1
    if failed:
        session.error("tests failed: see above")


@nox.session
def kinds(session: nox.Session) -> None:
    """Benchmark programs of popular frameworks and tools as they are; downloads their packages (gigabytes)."""
    install(session, "tests")
    session.install("--quiet", "-r", "tests/kinds/requirements.txt")
    session.run("pytest", "tests/kinds", "-ra", *session.posargs, env={"ENVMATRIX_TEST_KINDS": "1"})


@nox.session
def gpu(session: nox.Session) -> None:
    """Test all that needs a GPU, at most 25 minutes; runs are left in build/gpu, what broke in build/gpu.xml."""
    install(session, "tests")
    report = ("--junitxml=build/gpu.xml", "-ra", "--durations=0")
    session.run("pytest", "tests/gpu", *report, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types."""
    install(session, "tests", "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("mypy", "--python-version", "3.9", "-p", "bench")
