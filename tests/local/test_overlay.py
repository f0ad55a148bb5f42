"""Packages that an existing Python lacks, in a venv on top of it: real interpreters, local wheels, no index."""

import json
import subprocess
import sys
import zipfile

import pytest

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

PROGRAM = """
import os, subprocess, sys
import tiny, beside
assert (tiny.VERSION, beside.WORD) == ("2.0", "had"), (tiny.VERSION, beside.WORD)
assert "2.0 had\\n" in subprocess.run(["say-it"], stdout=subprocess.PIPE, text=True).stdout
"""
SAY = "import beside, tiny\ndef main(): print(tiny.VERSION, beside.WORD)\n"
ONE = ("bench", "--max-blocks", "1", "--environments", "glibc-tuned")


def wheel(folder, name, version, **modules):
    info = f"{name}-{version}.dist-info"
    files = {f"{key}.py": text for key, text in modules.items()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = "[console_scripts]\nsay-it = said:main\n" if "said" in modules else ""
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        for file, text in files.items():
            made.writestr(zipfile.ZipInfo(file), text)
    return folder


@pytest.fixture
def own(project, tmp_path, monkeypatch):
    """Create a user's venv: a package of its own, an old one, and a sitecustomize that prints at start and exit."""
    venv = tmp_path / "own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next(venv.glob("lib/python3*/site-packages"))
    for name, version, modules in (("tiny", "1.0", {"tiny": "VERSION = '1.0'\n"}),
                                   ("beside", "1.0", {"beside": "WORD = 'had'\n", "said": SAY})):  # fmt: skip
        with zipfile.ZipFile(next(wheel(tmp_path / "old", name, version, **modules).glob(f"{name}*"))) as held:
            held.extractall(site)
    talks = "import atexit\nprint('a site that talks')\natexit.register(print, '[it ends]')\n"
    (site / "sitecustomize.py").write_text(talks)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel(tmp_path / "wheels", "tiny", "2.0", tiny="VERSION = '2.0'\n")))
    (project.folder / "train.py").write_text(PROGRAM)
    (project.folder / "matrix.yaml").unlink()
    return project


def test_what_an_interpreter_lacks_is_installed_over_it_and_seen_with_all_that_it_has(own):
    (own.folder / "requirements.txt").write_text("tiny>=2  # newer than the one that is there\nbeside\n")
    words = ("-r", "requirements.txt", "--save", "--", "own/bin/python", "train.py")
    done = own.run(*ONE, *words)
    assert done.returncode == 0, done.stderr
    assert "building a venv of 1 package over" in done.stderr, "what is there in a version that fits stays"
    assert [trial["outcome"] for trial in own.trials()] == ["ok"] * 3
    run = json.loads((own.newest() / "run.json").read_text())
    facts = next(iter(run["images"].values()))
    assert facts["package tiny"] == "2.0"
    assert facts["lock_digest"].startswith("sha256:")
    assert "package beside" not in facts
    seen = subprocess.run([own.folder / "own/bin/python", "-c", "import tiny; print(tiny.VERSION)"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert seen.stdout.splitlines()[-2] == "1.0", "the interpreter stays as it is"
    assert 'requirements: ["-r requirements.txt"]' in (own.folder / "matrix.yaml").read_text()


def test_a_requirement_that_cannot_be_had_is_told_with_pips_words_and_nothing_is_run(own):
    (own.folder / "requirements.txt").write_text("nowhere==3\n")
    done = own.run(*ONE, "-r", "requirements.txt", "--", "own/bin/python", "train.py")
    assert done.returncode != 0
    assert "No matching distribution found for nowhere==3" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (own.folder / "results").exists()


def test_a_package_of_the_interpreter_that_changed_makes_resume_refuse(own):
    (own.folder / "requirements.txt").write_text("tiny>=2\n")
    done = own.run(*ONE, "-r", "requirements.txt", "--", "own/bin/python", "train.py")
    assert done.returncode == 0, done.stderr
    site = next((own.folder / "own").glob("lib/python3*/site-packages"))
    (site / "beside-1.0.dist-info").rename(site / "beside-1.1.dist-info")
    metadata = site / "beside-1.1.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "1.1"))
    again = own.run("resume", "--quiet")
    assert again.returncode == 2, again.stderr
    assert "has changed since this run started: over_packages" in again.stderr
