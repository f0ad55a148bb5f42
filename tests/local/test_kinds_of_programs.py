"""Many kinds of programs, each benchmarked by the one command without a matrix."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.build.cache import Cache, json_digest
from envmatrix.build.python.interpreters import uv_program
from envmatrix.system.resource_paths import cache_folder
from tests import held

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

PROJECT = Path(__file__).parents[2]
#: Part of the digest that names the venv of these tests.
_MADE = "torch by links, without torchvision"
PACKAGES = ("pytest==9.2.0", "pytest-benchmark==5.3.1", "numpy==2.4.6", "tqdm==4.70.1")
PLAIN = "print('done', sum(i * i for i in range(10 ** 5)))\n"
ARGPARSE = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--out", required=True)
given = parser.parse_args()
print("items/s: 1", "tokens/s: 2", sep="\\n")
json.dump({"final": {"items_per_s": 7.5 * given.epochs}}, open(given.out, "w"))
"""
LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
    model = torch.nn.Linear(8, 1)
    for x, y in DataLoader(data, batch_size=16, num_workers=2):
        torch.nn.functional.mse_loss(model(x), y).backward()
    print("trained")
"""
NUMPY = "import numpy\na = numpy.ones((64, 64))\nprint('GFLOP/s:', float((a @ a)[0, 0]))\n"
TRANSFORMERS = """
import torch
from transformers import BertConfig, BertForSequenceClassification

small = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
model = BertForSequenceClassification(BertConfig(vocab_size=64, hidden_size=16, **small))
words = torch.randint(0, 64, (4, 8))
model(input_ids=words, labels=torch.zeros(4, dtype=torch.long)).loss.backward()
print("trained")
"""
VENV = "import sys\nassert sys.prefix == sys.argv[1], sys.prefix\nassert sys.prefix != sys.base_prefix\n"
BENCHMARK = "def test_sum(benchmark):\n    assert benchmark(sum, range(1000)) == 499500\n"
SHELL = '#!/bin/bash\nset -e\ncd "$(dirname "$0")"\npython plain.py | tail -n 1\n'
#: Version of transformers.
VERSION = "5.23.0"
BAR = "from tqdm import tqdm\nfor _ in tqdm(range(500), desc='train', mininterval=0):\n    pass\n"
WALL = "metric: wall time, because no number"
QUICK = ("--benchmark-max-time=0.01", "--benchmark-min-rounds=1", "--benchmark-json=speed.json")
#: kind -> its files, the command, the options, the expected message.
KINDS = {
    "plain": ({"plain.py": PLAIN}, ("python", "plain.py"), (), WALL),
    "argparse and JSON": (
        {"train.py": ARGPARSE}, ("python", "train.py", "--epochs", "2", "--out", "out.json"),
        ("--metric-json", "out.json:final.items_per_s"), "metric: from --metric-json",
    ),
    "a progress bar of a package": ({"bar.py": BAR}, ("python3", "bar.py"), (), "it/s; higher is better"),
    "a venv of its own": ({"own.py": VENV}, ("own/bin/python", "own.py", "{folder}/own"), (), WALL),
    "numpy": ({"speed.py": NUMPY}, ("python", "speed.py"), (), "metric: GFLOP/s, 64; higher is better"),
    "pytest-benchmark": (
        {"test_speed.py": BENCHMARK}, ("pytest", "-q", "-p", "no:cacheprovider", *QUICK, "test_speed.py"),
        ("--metric-json", "speed.json:benchmarks.0.stats.ops"), "metric: from --metric-json",
    ),
    "shell script": ({"run.sh": SHELL, "plain.py": PLAIN}, ("./run.sh",), (), WALL),
}  # fmt: skip
#: Each program runs four times: the trial run, then the baseline, its control and one environment.
ONE_BLOCK = ("bench", "--max-blocks", "1", "--environments", "tcmalloc")


@pytest.fixture(scope="session")
def python_of_people():
    """Return a venv with commonly installed packages and the tests' PyTorch; it is kept for the next session."""
    site = os.environ.get("BENCH_SITE_PACKAGES", "")
    folder = cache_folder() / "tests" / json_digest(PACKAGES, sys.version, site, _MADE)[:16]

    def build(place: Path) -> None:
        uv = [uv_program(), "--quiet"]
        subprocess.run(
            [*uv, "venv", "--python", sys.executable, "--relocatable", "--allow-existing", place], check=True
        )
        python = place / "bin" / "python"
        subprocess.run([*uv, "pip", "install", "--python", python, *PACKAGES], check=True)
        found = next(place.glob("lib/python3*/site-packages"))
        (found / "torch.pth").write_text(f"{folder / 'torch'}\n")
        (place / "torch").mkdir()
        for entry in Path(site).iterdir() if site else ():
            if not entry.name.startswith("torchvision"):  # its operators may be built for another torch
                (place / "torch" / entry.name).symlink_to(entry)

    Cache(cache_folder()).folder(folder, build)
    return folder / "bin"


@pytest.fixture
def people(project, python_of_people, monkeypatch):
    (project.folder / "matrix.yaml").unlink()
    monkeypatch.setenv("PATH", f"{python_of_people}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads sleep: nothing is measured here
    return project


@pytest.mark.parametrize("kind", KINDS)
def test_one_command_benchmarks(people, kind):
    files, words, options, said = KINDS[kind]
    for name, text in files.items():
        (people.folder / name).write_text(text)
        (people.folder / name).chmod(0o755)
    if "own/" in words[0]:
        argv = [sys.executable, "-m", "venv", "--without-pip", people.folder / "own"]
        subprocess.run(argv, check=True)
    done = people.run(*ONE_BLOCK, *options, "--", *(word.format(folder=people.folder) for word in words))
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert "not tested yet" not in done.stderr, "it was said which environments"
    trials = people.trials()
    assert [trial["outcome"] for trial in trials] == ["ok"] * 3
    owners = {trial["environment"]: trial["record"]["evidence"]["malloc"]["library"] for trial in trials}
    assert owners == {"baseline": "libc", "control": "libc", "tcmalloc": "libtcmalloc"}
    if kind == "argparse and JSON":
        assert {trial["record"]["metrics"]["value"] for trial in trials} == {15.0}


#: Programs that print a better number under tcmalloc: format, two values, and the expected message about the metric.
PRINTING = {
    "separators": ("Throughput: {:,.1f} images/s", 987.6, 1017.2, "Throughput, 987.6 images/s"),
    "a loss behind": (
        "Epoch[0] Batch [20]  Speed: {:.2f} samples/sec  Loss: 0.55", 100.0, 200.0, "Speed, 100 samples/sec"
    ),
    "a loss before": ("epoch 3 loss {0:.4f} throughput: {0:.1f} img/s", 100.0, 110.0, "throughput, 100 img/s"),
    "a bar that gets fast": ("10/10 [00:02<00:00,  {}, loss=0.5]", "0.20s/it", "8.00it/s", "s/it, 0.2 s/it; lower"),
}  # fmt: skip


@pytest.mark.parametrize("kind", PRINTING)
def test_the_number_that_a_program_prints_is_the_one_that_is_compared(people, kind):
    form, plain, fast, said = PRINTING[kind]
    program = "import os\nfast = 'libtcmalloc' in os.environ.get('LD_PRELOAD', '')\n"
    (people.folder / "speed.py").write_text(f"{program}print({form!r}.format({fast!r} if fast else {plain!r}))\n")
    done = people.run(*ONE_BLOCK, "--", "python", "speed.py")
    assert done.returncode == 0, done.stderr
    assert f"metric: {said}" in done.stderr
    values = {trial["environment"]: trial["record"]["metrics"]["value"] for trial in people.trials()}
    wanted = (0.2, 0.125) if kind.startswith("a bar") else (float(plain), fast)
    assert (values["baseline"], values["tcmalloc"]) == pytest.approx(wanted)


#: Its module is in src/, its data next to its folder; it writes beside itself, and each trial starts from the same.
IN_PLACE = """
import os, pathlib, sys
sys.path.insert(0, "src")
import mine
assert os.getcwd() == os.path.dirname(os.path.abspath(__file__)) == HERE, os.getcwd()
assert not os.path.exists("checkpoints") and mine.__file__ == os.path.join(HERE, "src", "mine.py")
os.makedirs("checkpoints/last")
pathlib.Path("src/mine.py").write_text("broken(")
pathlib.Path("weights.bin").open("ab").write(b"x")
pathlib.Path("../out").mkdir()
print("throughput:", len(pathlib.Path("../data/x.bin").read_bytes()) / 0.2, "img/s")
"""


def user_files(folder):
    files = [path for path in sorted(folder.rglob("*")) if "results" not in path.parts]
    return {path: (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in files}


def test_a_program_is_seen_in_place_and_nothing_of_the_users_is_changed(people, monkeypatch):
    project = people.folder / "my project"
    for folder in (project / "src", people.folder / "data", people.folder / ".git"):
        folder.mkdir(parents=True)
    (people.folder / "data" / "x.bin").write_bytes(bytes(1000))
    (project / "weights.bin").write_bytes(bytes(2**21))
    (project / "src" / "mine.py").write_text("")
    (project / "train.py").write_text(f"HERE = {str(project)!r}\n{IN_PLACE}")
    monkeypatch.setattr(people, "folder", project)  # the folder in which the command is typed
    (project / "results").mkdir()
    before = user_files(project.parent)
    done = people.run(*ONE_BLOCK, "--", "python", "train.py")
    if "folder of links" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert "metric: throughput, 5000 img/s" in done.stderr
    trials = people.trials()
    assert [trial["outcome"] for trial in trials] == ["ok"] * 3
    assert {trial["environment"] for trial in trials if trial.get("unproven")} == set()
    assert user_files(project.parent) == before


def test_steps_that_are_printed_as_they_end_are_timed_in_turns(people):
    program = "import time\nfor step in range(40):\n    time.sleep(0.03)\n    print(f'step {step}: loss 0.5')\n"
    (people.folder / "steps.py").write_text(f"{program}print('throughput: 12.5 img/s')\n")
    done = people.run(*ONE_BLOCK, "--", "python", "steps.py")
    assert done.returncode == 0, done.stderr
    assert "metric: steps per second, from 40 lines that count up" in done.stderr
    assert "to use throughput, 12.5 img/s instead: --metric-regex " in done.stderr
    assert all(trial["record"]["timing"]["turns"] for trial in people.trials())


def test_a_program_of_minutes_is_left_by_one_key_and_told_of_a_budget_that_is_too_short(people, tmp_path_factory):
    (people.folder / "long.py").write_text(held.PROGRAM)
    people.held = held.Held(tmp_path_factory.mktemp("held"))  # what it writes into its own folder is caught
    words = ("--", "python", "long.py", str(people.held.folder), "0")
    people.held.hold(1)
    process = people.start(
        *ONE_BLOCK, "--setup", "touch set-up", "--cleanup", "rm set-up", *words, start_new_session=True
    )
    while not people.held.starts():
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert not (people.folder / "set-up").exists()
    assert not (people.folder / "results").exists()
    people.held.let_go()
    done = people.run(*ONE_BLOCK, "--budget", "1s", *words)
    assert re.search(r"budget 1s: time for \d+ trials? like the trial run; a verdict needs 18", done.stderr)


def test_the_recipes_are_tried_for_a_program_of_torch_whose_dataloader_has_workers(people):
    if not os.environ.get("BENCH_SITE_PACKAGES"):
        pytest.skip("no torch: `nox -s tests` has one")
    (people.folder / "train.py").write_text(LOADER)
    done = people.run(
        "bench", "--max-blocks", "1", "--environments", "pytorch-ci,book", "--save", "--", "python", "train.py"
    )
    assert done.returncode == 0, done.stderr
    found = {trial["environment"]: trial for trial in people.trials()}
    assert {trial["outcome"] for trial in found.values()} == {"ok"}, [trial["reason"] for trial in found.values()]
    evidence = found["pytorch-ci"]["record"]["evidence"]
    assert (evidence["malloc"]["library"], evidence["openmp"]["library"]) == ("libjemalloc", "libiomp5")
    assert "include: envmatrix:recipes" in (people.folder / "matrix.yaml").read_text()
    assert people.run("init", "--output", "same.yaml", "--", "python", "train.py").returncode == 0
    assert "include: envmatrix:recipes" in (people.folder / "same.yaml").read_text()
    checked = people.run("check", "--matrix", "same.yaml")
    assert checked.returncode == 0, checked.stderr


def test_the_example_in_plain_pytorch_says_its_throughput(people):
    if not os.environ.get("BENCH_SITE_PACKAGES"):
        pytest.skip("no torch: `nox -s tests` has one")
    text = (PROJECT / "examples" / "residual" / "train.py").read_text()
    (people.folder / "train.py").write_text(text.replace("CLASSES = 80, ", "CLASSES = 4, "))
    done = people.run(*ONE_BLOCK, "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert "metric: throughput, " in done.stderr
    assert [trial["outcome"] for trial in people.trials()] == ["ok"] * 3


@pytest.mark.timeout(600)
def test_a_model_of_transformers_from_a_config_is_trained_with_transformers_over_the_python_that_is_there(
    people, monkeypatch
):
    for name in ("PIP_CONFIG_FILE", "PIP_NO_INDEX", "PIP_FIND_LINKS"):  # set by the engines' tests in the same process
        monkeypatch.delenv(name, raising=False)
    if not os.environ.get("BENCH_SITE_PACKAGES"):
        pytest.skip("no torch: `nox -s tests` has one")
    (people.folder / "train.py").write_text(TRANSFORMERS)
    (people.folder / "requirements.txt").write_text(f"transformers=={VERSION}\n")
    done = people.run(*ONE_BLOCK, "-r", "requirements.txt", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert [trial["outcome"] for trial in people.trials()] == ["ok"] * 3
    run = json.loads((people.newest() / "run.json").read_text())
    facts = next(iter(run["images"].values()))
    assert facts["package transformers"] == VERSION
    assert "package torch" not in facts, "that is the one that was there"
