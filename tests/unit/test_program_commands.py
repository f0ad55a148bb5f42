"""A program on the command line: its name, its Python, and what is refused with what to type instead."""

import os
import shlex
from pathlib import Path

import pytest

from envmatrix.api.user_program import matrix_for_program
from envmatrix.api.user_program.program_options import ProgramRequest
from envmatrix.errors import InputError
from envmatrix.trials.user_program.command_line_check import (
    check_command_line,
    program_label,
    unwrap_uv_run,
    with_absolute_script_if_outside,
)
from envmatrix.trials.user_program.preliminary_run import find_program


@pytest.mark.parametrize(
    ("words", "called"),
    [
        ("python -u train.py --x 1", "train"),
        ("python -m pkg.train", "train"),
        ("python3 -X dev -m pkg.__main__", "pkg"),
        ("torchrun --nproc-per-node 2 train.py", "train"),
        ("pytest tests/test_it.py", "pytest"),
        ("./run.sh", "run"),
        ("python -c print(1)", "python"),
        ("sh -c 'python train.py <data.txt'", "train"),
    ],
)
def test_a_program_is_called_as_its_script_or_module_is(words, called):
    assert program_label(shlex.split(words)) == called


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("python -u ../train.py --data ../data", "python -u {up}/train.py --data ../data"),
        ("../run.sh ../train.py", "{up}/run.sh ../train.py"),
        ("python ../missing.py", "python ../missing.py"),
        ("python -m train ../train.py", "python -m train ../train.py"),
        ("torchrun ../train.py", "torchrun ../train.py"),
    ],
)
def test_a_script_in_a_folder_above_is_named_by_its_absolute_path(tmp_path, monkeypatch, words, wanted):
    for name in ("train.py", "run.sh"):
        (tmp_path / name).touch()
    (tmp_path / "exp").mkdir()
    monkeypatch.chdir(tmp_path / "exp")
    assert " ".join(with_absolute_script_if_outside(tuple(words.split()))) == wanted.format(up=tmp_path)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("uv run train.py --x", "{venv}/bin/python train.py --x"),
        ("uv run python -m pkg", "{venv}/bin/python -m pkg"),
        ("uv run torchrun train.py", "{venv}/bin/torchrun train.py"),
        ("uv run bash run.sh", "bash run.sh"),
        ("uv run --frozen -q train.py", "{venv}/bin/python train.py"),
        ("/opt/bin/uv run --no-sync -m pkg.train", "{venv}/bin/python -m pkg.train"),
        ("uv run -- python train.py", "{venv}/bin/python train.py"),
        ("uv sync", "uv sync"),
        ("python run train.py", "python run train.py"),
    ],
)
def test_uv_run_is_the_python_of_its_project_which_no_trial_syncs(tmp_path, monkeypatch, words, wanted):
    """Guards against `uv run` in a trial's folder: uv would install the copied project into the user's own venv."""
    programs_of = tmp_path / ".venv" / "bin"
    programs_of.mkdir(parents=True)
    for name in ("python", "torchrun"):
        (programs_of / name).touch()
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "src").mkdir()
    monkeypatch.delenv("UV_PROJECT_ENVIRONMENT", raising=False)
    monkeypatch.chdir(tmp_path / "src")
    assert " ".join(unwrap_uv_run(tuple(words.split()), lambda _: None)) == wanted.format(venv=tmp_path / ".venv")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("uv run train.py", "create it: `uv sync`"),
        ("uv run --with tqdm train.py", "-- .venv/bin/python train.py"),
        ("poetry run python train.py", '-- "$(poetry env info --executable)" train.py'),
        ("conda run -n it python train.py", '-- "$(conda run -n NAME which python)" train.py'),
        ("/opt/conda/bin/conda run -n it python train.py", '-- "$(conda run -n NAME which python)" train.py'),
        ("uv run own.py", '`uv sync --script own.py`, then: -- "$(uv python find --script own.py)" own.py'),
    ],
)
def test_what_chooses_a_python_by_its_folder_is_told_how_that_is_named(tmp_path, monkeypatch, words, remedy):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("# /// script\n# dependencies = ['tqdm']\n# ///\n")
    with pytest.raises(InputError) as told:
        unwrap_uv_run(tuple(words.split()), lambda _: None)
    assert remedy in told.value.remedy


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("python train.py --epochs 1", "without quotes: -- python train.py --epochs 1"),
        ("python a.py && python b.py", "pass it to a shell: -- bash -c 'python a.py && python b.py'"),
        ("cd src", "pass it to a shell: -- bash -c 'cd src'"),
        ("N=1 python train.py", "without quotes: -- env N=1 python train.py"),
    ],
)
def test_a_program_in_quotes_as_hyperfine_takes_it_is_told_how_it_is_written(text, remedy):
    with pytest.raises(InputError) as told:
        find_program((text,))
    assert told.value.remedy == remedy


@pytest.mark.parametrize(
    ("name", "mode", "remedy"),
    [
        ("run.sh", 0o755, "add the folder, as in a shell: -- ./run.sh --fast"),
        ("run.sh", 0o644, "make it executable (`chmod +x run.sh`), or name its interpreter: -- bash run.sh --fast"),
        ("run.py", 0o755, "-- python run.py --fast"),
        ("run.py", 0o644, "-- python run.py --fast"),
    ],
)
def test_a_program_that_no_path_has_is_told_as_it_would_start(tmp_path, monkeypatch, name, mode, remedy):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("#!/bin/sh\n")
    Path(name).chmod(mode)
    with pytest.raises(InputError) as told:
        find_program((name, "--fast"))
    assert told.value.remedy == remedy


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("FOO=1 python train.py", "-- env FOO=1 python train.py"),
        ("cd src", "cd is part of a shell: pass it the whole line, in quotes: -- bash -c 'cd src ...'"),
        ("notthere --fast", "pass a program on the PATH, or a file: -- ./run.sh. If it is an alias or a function of "
         "your shell, write what it stands for: `type notthere` prints it"),
        ("tarin.py", "did you mean ./train.py?"),
    ],
)  # fmt: skip
def test_what_only_a_shell_understands_is_told_as_a_trial_can_start_it(tmp_path, monkeypatch, line, remedy):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    with pytest.raises(InputError) as told:
        find_program(tuple(line.split()))
    assert (told.value.message, told.value.remedy) == (f"no such program: {line.split()[0]!r}", remedy)


def test_a_shells_own_time_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as told:
        find_program(("time", "python", "train.py"))
    assert told.value.remedy == "leave it out, as each run is timed: -- python train.py"


@pytest.mark.parametrize(
    ("words", "said", "remedy"),
    [
        (("sudo", "-E", "python", "x.py"), "sudo removes the variables", "sudo envmatrix bench -- PROGRAM"),
        (("strace", "-f", "python", "x.py"), "strace writes its lines into", "-- strace -o FILE PROGRAM"),
        (("/usr/bin/srun", "python", "x.py"), "srun starts its program outside", "--launcher slurm -- PROGRAM"),
        (("ssh", "node", "python"), "ssh starts its program outside", "--launcher ssh --hosts HOST -- PROGRAM"),
        (("bash", "/dev/fd/63"), "/dev/fd/63 is a pipe of your shell", "-- bash -c 'LINE'"),
        (("zsh", "/proc/self/fd/12"), "a pipe of your shell, which can be read only once", "-- bash -c 'LINE'"),
        (("python", "-c", "import time\ntime.sleep(1)"), "has a newline or another character", "-- python FILE"),
        (("python", "caf\udce9.py"), "'caf\\udce9.py' has a newline or another character", "-- python FILE"),
        (("", "x.py"), "is an empty word", "a variable of your shell"),
        (("python", "-"), "python - reads a program from standard input", "-- python FILE"),
    ],
)
def test_work_that_no_trial_would_do_is_refused_by_bench_and_by_init(words, said, remedy):
    request = ProgramRequest(words)
    for act in (request.program, lambda: matrix_for_program.draft_matrix(request, None, Path("matrix.yaml"), print)):
        with pytest.raises(InputError) as told:
            act()
        assert said in told.value.message
        assert remedy in told.value.remedy


@pytest.mark.parametrize("option", ["-o", "-fo", "--output=trace.txt"])
def test_a_tracer_that_writes_to_a_file_is_a_program_like_others(option):
    check_command_line(("strace", option, "trace.txt", "python", "x.py"))


@pytest.mark.parametrize("name", [b"new\nline", b"caf\xe9"])
def test_a_folder_whose_name_no_file_of_a_run_can_hold_is_told_first(tmp_path, monkeypatch, name):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="has a newline or bytes that are not UTF-8") as told:
        ProgramRequest(("python", "x.py")).program()
    assert told.value.remedy.startswith("rename it")
