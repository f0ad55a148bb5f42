"""What `--like FILE` reads from files as people have them, and what it says of the rest; nothing in them is run."""

import json
import sys
from pathlib import Path

import pytest

from envmatrix.api.program.request import ProgramRequest
from envmatrix.errors import InputError
from envmatrix.matrix.environment_files import read_environment_file
from envmatrix.matrix.model import Workload
from envmatrix.matrix.parse import parse
from envmatrix.matrix.template import MatrixTemplate

FILES = {
    ".env": "# mine\nexport A=1\nB='x y'  # why\nHF_TOKEN=hf_x\nC=$(touch ran)\nbroken 'quote\nword\nD=x y\n",
    "Dockerfile": "FROM python:3.12\nENV A=1 \\\n    B='x y'\nENV OLD some words\nENV P=$A/x\nRUN touch ran\n",
    "job.sbatch": "#!/bin/bash\n#SBATCH -n 2\nmodule purge\nmodule load gcc/12 cuda\nml mpi\nmodule load x/$V\n"
    "export A=1 B='x y'\nexport LATE\nexport C=`touch ran`\n. ./more.sh\nsource env/bin/activate\ntouch ran\n"
    "source\t\n. # nothing\n. ~nobody-of-this-name/bin/activate\n",
    "environment.yml": "name: mine\nprefix: env\ndependencies: [python]\nvariables:\n  A: 1\n  B: x y\n  PATH: /x\n",
}
NOTES = {
    ".env": [
        "4: HF_TOKEN is not stored",
        "5: C is not used: its value needs a shell",
        "6: not read: ",
        "7: not NAME=VALUE",
        "8: D is not used: quote a value with blanks",
    ],
    "Dockerfile": ["1: the image python:3.12 is not used", "5: P is not used: its value needs a shell"],
    "job.sbatch": [
        "6: module x/$V is not loaded",
        "8: LATE is not used",
        "9: C is not used",
        "10: ./more.sh is not read",
        "15: ",
    ],
    "environment.yml": ["7: PATH is not used"],
}


@pytest.mark.parametrize("name", FILES)
def test_variables_modules_and_the_python_are_read_and_the_rest_is_reported_with_its_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").touch()
    file = tmp_path / name
    file.write_text(FILES[name])
    found = read_environment_file(file)
    assert {key: found.variables[key] for key in ("A", "B")} == {"A": "1", "B": "x y"}
    assert set(found.variables) <= {"A", "B", "OLD"}
    assert found.modules == (["gcc/12", "cuda", "mpi"] if name == "job.sbatch" else [])
    has_python = name in ("job.sbatch", "environment.yml")
    assert found.interpreter == (str(tmp_path / "env" / "bin" / "python") if has_python else "")
    heads = [f"{file}:{note}" for note in NOTES[name]]
    assert [note[: len(head)] for note, head in zip(found.notes, heads, strict=True)] == heads
    assert not (tmp_path / "ran").exists()
    assert "hf_x" not in repr(found)


def test_the_python_of_a_project_is_that_of_its_venv(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    assert ".venv/bin/python does not exist" in read_environment_file(tmp_path / "pyproject.toml").notes[0]
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    found = read_environment_file(tmp_path / "pyproject.toml")
    assert found.interpreter == str(tmp_path / ".venv" / "bin" / "python")
    program = ProgramRequest(("python", "train.py"), like=found).program()
    assert (program.interpreter, program.command) == (found.interpreter, ("python", "train.py"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("notes.txt", "A=1"),
        ("environment.yml", "a: ["),
        ("environment.yml", "- 1"),
        ("environment.yml", "variables: [A, B]"),
        (".env", b"\xff"),
        ("gone.env", None),
    ],
)
def test_a_file_that_cannot_be_read_so_is_refused(tmp_path, name, text):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError):
        read_environment_file(tmp_path / name)


def test_modules_and_variables_are_in_the_saved_matrix():
    workload = Workload(name="mine", command=("python", "train.py"), env={"A": "x y"})
    template = MatrixTemplate("", [workload], torch=False, environments=["tcmalloc"], modules=("gcc/12", "cuda"))
    matrix = parse(template.text(), Path("matrix.yaml"))
    assert matrix.workloads["mine"].env == {"A": "x y"}
    level = json.loads(json.dumps(matrix.factors["python"].levels["mine"].modules))
    assert level == ["gcc/12", "cuda"]
