"""Which variables of this shell a user's own program gets, and the messages about the others."""

import subprocess
import sys

import pytest

from envmatrix.__main__ import main
from envmatrix.block.fork_limit import MOST_PROCESSES
from envmatrix.errors import InputError
from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Image
from envmatrix.system import bench_options
from envmatrix.trials.execution import base_variables, trial_variables
from envmatrix.trials.user_program.failure_hints import find_failure_hints, outside_path_hint
from envmatrix.trials.user_program.passed_variables import (
    check_passed_variables,
    dropped_variables_hint,
    missing_module_name,
    missing_module_text,
    pass_available_variables,
    starting_variables,
)
from tests.synthetic import make_environment

BASE = base_variables("/work", "/c/bench", "/venv/bin/python")


def workload(**more):
    return Workload.model_validate({"name": "mine", "command": ("python", "train.py"), **more})


@pytest.fixture(autouse=True)
def shell(monkeypatch):
    for name in ("DATA_DIR", "HF_HOME", "PYTHONPATH", "MY_DATA_PATH", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_what_is_written_and_passed_arrives_beside_ours(shell):
    shell.setenv("DATA_DIR", "/data")
    shell.setenv("PYTHONPATH", "/mine:/more")
    shell.setenv("PATH", "/home/bin:/usr/bin")
    mine = workload(env={"EPOCHS": "1"}, pass_env=("DATA_DIR", "PYTHONPATH", "PATH", "HF_HOME"))
    given = starting_variables(mine, BASE)
    assert (given["EPOCHS"], given["DATA_DIR"]) == ("1", "/data")
    assert given["PYTHONPATH"] == "/c:/mine:/more"
    assert given["PATH"].startswith("/venv/bin:/home/bin:/usr/bin:/usr/local/sbin:")
    assert "HF_HOME" not in given, "it is not set here"
    assert given["HOME"] == "/work"


def test_an_empty_search_path_of_the_shell_or_a_file_takes_none_of_ours_away(shell):
    """Guards against "another version of bench/" in every trial after `export PYTHONPATH=`."""
    shell.setenv("PYTHONPATH", "")
    given = starting_variables(workload(pass_env=("PYTHONPATH",), env={"PATH": "", "EMPTY": ""}), BASE)
    assert (given["PYTHONPATH"], given["PATH"], given["EMPTY"]) == (BASE["PYTHONPATH"], BASE["PATH"], "")


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"]
)
def test_a_program_keeps_to_the_gpus_that_the_shell_names(shell, tmp_path, name):
    shell.setenv(name, "2")
    shell.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["init", "--", "python", "train.py"]) == 0
    assert f'"{name}"' in (tmp_path / "matrix.yaml").read_text()


def test_a_script_in_a_folder_above_gets_the_variables_that_it_reads(shell, tmp_path):
    (tmp_path / "exp").mkdir()
    shell.chdir(tmp_path / "exp")
    shell.setenv("MY_DATA_PATH", "/data")
    (tmp_path / "train.py").write_text('import os\nprint(os.environ["MY_DATA_PATH"])\n')
    assert main(["init", "--", "python", "../train.py"]) == 0
    text = (tmp_path / "exp" / "matrix.yaml").read_text()
    assert '"MY_DATA_PATH"' in text
    assert f'"{tmp_path}/train.py"' in text


def test_what_torch_compile_keeps_is_in_the_trials_folder_unless_it_is_passed(shell):
    shell.setenv("HOME", "/home/me")
    given = starting_variables(workload(home="real"), BASE)
    assert given["TORCHINDUCTOR_CACHE_DIR"] == f"{BASE['HOME']}/.torchinductor"
    mine = workload(env={"TORCHINDUCTOR_CACHE_DIR": "/fast"})
    assert starting_variables(mine, BASE)["TORCHINDUCTOR_CACHE_DIR"] == "/fast"


def test_home_is_the_users_own_where_it_is_asked_for(shell):
    shell.setenv("HOME", "/home/me")
    given = starting_variables(workload(home="real"), BASE)
    assert given["HOME"] == "/home/me"
    assert "PYTHONNOUSERSITE" not in given, "what lies in ~/.local is a part of that home"


def test_what_an_environment_sets_counts_more_and_what_it_declares_absent_is_gone():
    mine = workload(env={"OMP_NUM_THREADS": "9", "GOMP_SPINCOUNT": "1", "EPOCHS": "1"})
    found = trial_variables(mine, make_environment("fast"), BASE)
    assert found["OMP_NUM_THREADS"] == "2"
    assert "GOMP_SPINCOUNT" not in found
    assert "EPOCHS" in found[next(name for name in found if name == "BENCH_VARIABLES")].split(",")


def test_the_value_of_a_passed_variable_is_never_named_as_one_to_record(shell):
    shell.setenv("HF_TOKEN", "hf_secret")
    found = trial_variables(workload(pass_env=("HF_TOKEN",)), make_environment("fast"), BASE)
    assert found["HF_TOKEN"] == "hf_secret"
    assert "HF_TOKEN" not in found.get("BENCH_VARIABLES", "")
    assert bench_options.recorded_variable("HF_TOKEN", "hf_secret") == "(hidden)"


def test_what_is_not_set_here_is_told_once_and_a_run_that_began_with_it_wants_it_again(shell):
    said = []
    settled = pass_available_variables(workload(pass_env=("DATA_DIR", "HF_HOME")), said.append)
    assert settled.pass_env == ()
    assert "not set in your shell, so no trial has it (pass_env): DATA_DIR, HF_HOME" in said[0]
    with pytest.raises(InputError, match="DATA_DIR was set when this run started"):
        check_passed_variables([workload(pass_env=("DATA_DIR",))])


def test_one_line_names_what_a_program_looks_for_and_did_not_get(shell, tmp_path):
    shell.setenv("CORPUS", "/data/corpus")
    shell.setenv("MY_DATA_PATH", "/data")
    shell.setenv("HF_TOKEN", "hf_secret")
    shell.setenv("UNRELATED", "x")
    (tmp_path / "train.py").write_text("import os\nopen(os.environ['CORPUS'])\n")
    line = dropped_variables_hint(workload(pass_env=("MY_DATA_PATH",)), [tmp_path / "train.py"], "")
    assert "CORPUS" in line
    assert "HF_TOKEN" in line
    assert not {"MY_DATA_PATH", "UNRELATED", "hf_secret"} & set(line.replace(",", " ").split())
    assert "UNRELATED" in dropped_variables_hint(workload(), [], "KeyError: 'UNRELATED'")


@pytest.mark.parametrize(
    ("image", "python", "remedy"),
    [
        (Image("default"), "without any package", "interpreter: .venv/bin/python"),
        (Image("mine", interpreter="/v/bin/python"), "/v/bin/python", "install it there"),
        (Image("mine", interpreter="/v/bin/python", requirements=("numpy",)), "a Python with numpy", "`requirements`"),
        (Image("mine", requirements=("numpy", "tqdm")), "a Python with numpy, tqdm", "`requirements`"),
        (Image("mine", modules=("PyTorch/2",)), "PyTorch/2", "use an image or module that has it"),
        (Image("mine", ready="org/it@sha256:0"), "org/it@sha256:0", "use an image or module that has it"),
    ],
)
def test_a_module_that_is_not_there_is_told_with_the_python_that_lacks_it(image, python, remedy):
    line = missing_module_text(
        workload(), image, "Traceback\nModuleNotFoundError: No module named 'torch.nn'\nbench: x\n"
    )
    where, _, what = line.partition("; ")
    assert where.startswith("mine runs in ")
    assert where.endswith(f"{python}, which has no module 'torch.nn'")
    assert remedy in what


def test_a_module_that_python_m_does_not_find_is_lost_too():
    assert missing_module_name("/opt/v/bin/python3.12: No module named trian\nbench: error: ...") == "trian"
    assert missing_module_name("/opt/v/bin/python: No module named pkg.__main__; 'pkg' is a package") == "pkg.__main__"


MINE = Image("first-look", interpreter="/v/bin/python")


def test_at_the_first_look_a_lost_module_is_told_with_the_file_of_requirements_that_is_there(tmp_path):
    lost = "ModuleNotFoundError: No module named 'timm'"
    assert "(-r requirements.txt)" in find_failure_hints(workload(), MINE, lost, tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert find_failure_hints(workload(), MINE, lost, tmp_path).endswith(
        "or add requirements on top (-r pyproject.toml)"
    )
    over = Image("first-look", interpreter="/v/bin/python", requirements=("tqdm",))
    assert "add its package to the requirements file" in find_failure_hints(workload(), over, lost, tmp_path)


def test_at_the_first_look_a_variable_that_its_last_words_name_is_told_with_the_option_that_gives_it(shell, tmp_path):
    shell.setenv("TRACKING_URI", "http://here")
    shell.setenv("MY_DATA_PATH", "/data")
    said = "KeyError: 'TRACKING_URI'"
    assert find_failure_hints(workload(), MINE, said, tmp_path) == (
        "it did not get TRACKING_URI from your shell: --pass-env TRACKING_URI"
    )
    assert find_failure_hints(workload(pass_env=("TRACKING_URI",)), MINE, said, tmp_path) == ""


@pytest.mark.parametrize(
    "said",
    [
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "RuntimeError: can't start new thread",
        "./run.sh: fork: retry: Resource temporarily unavailable",
        "terminate called after throwing 'std::system_error'\n  what():  Resource temporarily unavailable",
    ],
)
def test_a_program_that_reaches_the_limit_on_processes_is_told_of_it(said, tmp_path):
    assert f"a trial may have {MOST_PROCESSES}" in find_failure_hints(workload(), MINE, said, tmp_path)


@pytest.mark.parametrize("program", ["input('name? ')", "import getpass; getpass.getpass()"])
def test_a_program_that_waits_for_a_keyboard_is_told_that_there_is_none(program, tmp_path):
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run([sys.executable, "-c", program], **streams, start_new_session=True, check=False, timeout=60)
    assert "a trial has no keyboard" in find_failure_hints(workload(), MINE, done.stdout, tmp_path)


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("OSError: [Errno 25] Inappropriate ioctl for device", "-- script -qec 'PROGRAM' /dev/null"),
        ("(Pdb) Traceback ...\nbdb.BdbQuit", "-- env PYTHONBREAKPOINT=0 PROGRAM"),
    ],
)
def test_a_program_that_wants_a_terminal_or_stops_in_a_debugger_is_told_what_to_type(tmp_path, said, remedy):
    assert remedy in find_failure_hints(workload(), MINE, said, tmp_path)


@pytest.mark.parametrize(
    ("command", "said", "path"),
    [
        (("python", "../train.py"), "can't open file", "../train.py"),
        (("python", "train.py", "--data=../data"), "no data", "../data"),
        (("python", "train.py"), "FileNotFoundError: No such file or directory: '../data/x'", "../data/x"),
        (("python", "train.py"), "it took 1../2", ""),
        (("python", "train.py"), "KeyError: 'x'", ""),
    ],
)
def test_a_path_out_of_the_programs_folder_is_told_where_it_failed(command, said, path):
    line = outside_path_hint(workload(command=command), said)
    assert line.startswith(f"{path} was not found: ") if path else line == ""


def test_another_failure_says_nothing_of_modules():
    assert missing_module_text(workload(), Image("default"), "KeyError: 'No module named x'") == ""
