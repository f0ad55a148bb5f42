"""`export --patch FILE`: after the patch, the user's own file sets up the environment, and all else is as it was."""

import os
import subprocess
from dataclasses import replace

import pytest

from envmatrix.__main__ import main
from envmatrix.errors import InputError
from envmatrix.matrix.environment_files import read_environment_file
from envmatrix.plan.environment import Environment, Image
from envmatrix.plan.export_lines import environment_patch

ENVIRONMENT = Environment("tuned", "", {}, Image("i"), {"A": "b 'c' $d", "OMP_NUM_THREADS": "2", "GONE": None}, (), {})
FILES = {
    ".env": "A=1\nOTHER=2",
    "crlf.env": "A=1\r\nOTHER=2\r\n",
    "Dockerfile": 'FROM x AS build\nENV A=1\nFROM y\nENV OTHER=2 \\\n  A=3\nCMD ["python"]\n',
    "environment.yml": "name: x\nvariables:\n  A: '1'\n  OTHER: '2'\ndependencies: [python]\n",
    "bare.yml": "name: x\ndependencies: [python]\n",
    "job.sbatch": "#!/bin/bash\n#SBATCH -n 1\nmodule load gcc\nexport OTHER=2 A=1 GONE=1\n"
    "if true; then\n  export B=1\nfi\n"
    "cd /tmp && \\\n  env -0\n",
    "empty.sh": "",
}


def patched(file, environment=ENVIRONMENT, preload=()):
    difference = environment_patch(file, file.read_bytes().decode(), environment, preload)
    subprocess.run(["patch", "--binary", "-s", str(file)], input=difference.encode(), check=True)
    return difference


@pytest.mark.parametrize("name", FILES)
def test_a_patched_file_sets_up_the_environment(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(FILES[name].encode())
    patched(file)
    if name == "job.sbatch":
        out = subprocess.run(
            ["bash", str(file)], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True
        )
        real = dict(text.partition("=")[::2] for text in out.stdout.partition("\0\n")[0].split("\0"))
        assert (real["A"], real["OMP_NUM_THREADS"], real["OTHER"], real["B"]) == ("b 'c' $d", "2", "2", "1")
        assert "GONE" not in real
    else:
        found = read_environment_file(file)
        assert found.variables["OMP_NUM_THREADS"] == "2"
        assert found.variables.get("OTHER") == ("2" if "OTHER" in FILES[name] else None)
        assert "A" not in found.variables  # it has a dollar, which --like leaves out
    kept = [line for line in FILES[name].splitlines() if "A: " not in line]
    assert [line for line in file.read_text().splitlines() if line in kept] == kept


def test_git_applies_it_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ".env"
    file.write_text("OTHER=2")
    difference = environment_patch(file, file.read_text(), replace(ENVIRONMENT, variables={"A": "1"}), ("/lib/x.so",))
    subprocess.run(["git", "apply", "-"], input=difference, text=True, check=True)
    assert read_environment_file(file).variables == {"OTHER": "2", "A": "1"}
    assert "LD_PRELOAD=/lib/x.so\n" in file.read_text()


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("pyproject.toml", "[project]\n", "no place for environment variables"),
        ("environment.yml", "name: x\nvariables: {A: x}\n", "not a block"),
        ("compose.yml", "services: {}\n", "no environment of conda"),
        ("job.sh", "#!/bin/sh\npython train.py\nexport A=1\n", "sets A again, after its work begins in line 2"),
        ("notes.txt", "A=1\n", "not a file whose variables"),
    ],
)
def test_a_file_that_cannot_be_patched_is_refused(tmp_path, name, text, error):
    with pytest.raises(InputError, match=error):
        environment_patch(tmp_path / name, text, ENVIRONMENT, ())


def test_the_command_prints_the_patch_and_changes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sbatch").write_text("#!/bin/sh\nsrun python train.py\n")
    assert main(["export", "glibc-tuned", "--patch", "train.sbatch"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("--- a/train.sbatch\n+++ b/train.sbatch\n")
    assert "+export MALLOC_" in out or "+export GLIBC_TUNABLES" in out
    assert (tmp_path / "train.sbatch").read_text() == "#!/bin/sh\nsrun python train.py\n"
    assert main(["export", "glibc-tuned", "--patch", "train.sbatch", "--as", "json"]) == 2
