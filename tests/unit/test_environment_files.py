"""What `--like FILE` reads from files as people have them, and what it says of the rest; nothing in them is run."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envmatrix.api.user_program.program_options import ProgramRequest
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


SCRIPT = r"""#!/bin/bash
# a comment does not go on \
export A=1 B=2; export C=3
export D=4 && module load gcc/12
export LONG=/one:\
/two HASH=a#b QUOTED='it'"'"'s' EMPTY= EQUALS==x  # why
export "NAMED=some words" MANY="two
export INNER=1
lines"
HOME_LIKE=~/x
export TILDE=~/x HOME_LIKE
if [ "$NOBODY" = 1 ]; then
  export TWICE=1
  module load never
else
  export TWICE=2
fi
case x in
  (x) export CASE=1 ;;
esac
f() {
  export IN_FUNCTION=1
}
(export SUBSHELL=1)
[ -n "$NOBODY" ] && export PERHAPS=1
cat <<EOF >/dev/null
export HEREDOC=1
EOF
unset B
LATER=1
export LATER
export GROWN=1
GROWN+=2
export GROWN
export OLD=1
export OLD=$(echo 2)
declare -x DECLARED=1
ONCE=1 true
module purge
module load a/1 b; module load c
ml -b d
source /nowhere/etc/profile.d/conda.sh && conda activate ./env
"""


def test_a_script_means_what_a_shell_makes_of_it(tmp_path):
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").touch()
    file = tmp_path / "job.sh"
    file.write_text(SCRIPT)
    shell = ["bash", "-c", f". {file} 2>/dev/null; env -0"]
    real = dict(text.partition("=")[::2] for text in subprocess.check_output(shell, text=True).split("\0"))
    found = read_environment_file(file)
    assert found.variables == {name: real.get(name) for name in found.variables}
    taken = "A C D LONG HASH QUOTED EMPTY EQUALS NAMED LATER DECLARED"
    assert set(found.variables) == set(taken.split())
    assert (found.modules, found.interpreter) == (["a/1", "c", "d"], str(tmp_path / "env" / "bin" / "python"))
    told = {note.removeprefix(f"{file}:").split()[1] for note in found.notes}
    assert told >= {
        "TILDE",
        "HOME_LIKE",
        "TWICE",
        "module",
        "CASE",
        "IN_FUNCTION",
        "SUBSHELL",
        "PERHAPS",
        "ONCE",
        "OLD",
    }


@pytest.mark.parametrize("text", ["#!/usr/bin/env python3\nexport = 1\n", "#!/bin/csh\nsetenv A 1\n"])
def test_a_script_of_another_language_is_refused(tmp_path, text):
    (tmp_path / "job.sh").write_text(text)
    with pytest.raises(InputError, match="not a script of sh"):
        read_environment_file(tmp_path / "job.sh")


@pytest.mark.parametrize(
    ("name", "text", "variables"),
    [
        (".env", "\ufeffA=1\r\nB='x y'\r\n", {"A": "1", "B": "x y"}),
        (".env", "A=a#b\nB=c #d\n", {"A": "a#b", "B": "c"}),
        (".env", 'KEY="begin\nINNER=1\nend"\nA=1\n', {"A": "1"}),
        (".env", 'A=1\nA="x\\ty"\nB=C:\\data\nC=\'C:\\data\'\nD="say \\"a\\""\n', {"C": "C:\\data", "D": 'say "a"'}),
        (".env", "A=1;2\nB=~/x\nC=it's\nD=a=b\nE=1\nE=some words\n", {"D": "a=b"}),
        ("Dockerfile", "FROM x\nENV A=1 \\\n  # why\n\n  B='a # b'#c\n", {"A": "1", "B": "a # b#c"}),
        ("Dockerfile", "FROM x\nENV\tA=1\nENV B=x\\\ny C=a\\ b;c\n", {"A": "1", "B": "xy", "C": "a b;c"}),
        ("Dockerfile", "FROM x\nENV A  some  'words' b=c\nENV B\n", {"A": "some  words b=c"}),
        ("Dockerfile", "FROM x AS build\nENV A=1\nFROM y\nENV B=2\n", {"B": "2"}),
        ("Dockerfile", "FROM x AS Base\nENV A=1\nFROM y\nENV C=1\nFROM base\nENV B=2\n", {"A": "1", "B": "2"}),
        ("Dockerfile", "ARG V=1\nFROM x\nENV A=0\nARG A=2\nENV A=$V\nENV B=${V:-1}\n", {}),
        ("Dockerfile", "FROM x\nRUN <<EOF\nENV A=1\nEOF\nENV B=1\nRUN a \\\n", {"B": "1"}),
        ("environment.yml", "variables: {A: 4, B: '012', C: 0-3}\n", {"A": "4", "B": "012", "C": "0-3"}),
        ("environment.yml", "variables: {A: yes, B: 012, C: 1:30, D: 1.50, E: , F: [x], G: 1e-3, H: 1_0, I: $X}\n", {}),
        ("environment.yml", "variables: {yes: x, [a]: x}\n", {"yes": "x"}),
    ],
)  # fmt: skip
def test_no_value_is_taken_that_another_program_would_read_otherwise(tmp_path, name, text, variables):
    file = tmp_path / name
    file.write_text(text)
    assert read_environment_file(file).variables == variables


@given(
    st.sampled_from([".env", "Dockerfile", "job.sh", "environment.yml"]),
    st.lists(st.sampled_from([*"A=1'\"\\$`#;&|(){}<~ \n\t-:[]", "<<", "ENV ", "FROM ", "if ", "export ", "\\\n"])),
)
def test_no_text_is_a_traceback(tmp_path_factory, name, pieces):
    file = tmp_path_factory.mktemp("texts") / name
    file.write_text("".join(pieces))
    with contextlib.suppress(InputError):
        read_environment_file(file)
