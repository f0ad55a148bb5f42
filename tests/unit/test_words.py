"""Messages that must name the right cause and place."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from envmatrix.__main__ import main
from envmatrix.build.debian import minimal_base
from envmatrix.engines import sif_build
from envmatrix.engines.docker_api import APIError, docker_errors
from envmatrix.errors import EngineError
from envmatrix.system.host import has_any_gpu, has_gpu
from envmatrix.system.process import Exit, Finished
from tests.unit.test_values import HEAD, REST

FULL = (
    "E: You don't have enough free space in /var/cache/apt/archives/.",
    "tar: base.tar: Wrote only 2048 of 10240 bytes",
    "dpkg: error processing archive: failed to write (No space left on device)",
    "mmdebstrap: write failed: Disk quota exceeded",
)


@pytest.mark.parametrize("said", FULL)
def test_a_full_disk_while_a_base_is_made_is_no_fault_of_the_mirror(said):
    done = Finished(("mmdebstrap",), Exit(1, 1.0), "", said + "\n")
    with pytest.raises(EngineError, match="no space left on device") as caught:
        minimal_base._check_finished(done, "no base", Path("/cache"))
    assert "mirror" not in str(caught.value)


def test_a_cpu_that_the_engine_lacks_is_said_in_words():
    with pytest.raises(EngineError, match="lacks a requested CPU") as caught, docker_errors("running b0"):
        raise APIError("400 Client Error: Requested CPUs are not available - requested 999, available: 0-1")
    assert "--cpus" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("version: 2\na:\n  " + "[" * 900 + "]" * 900, "3:902: nested too deeply"),
        ("version: 2\na: " + "[" * 900 + "]" * 899 + "}", "2:903: nested too deeply"),
        ("version: 2\na: b\nc: é \x01\n", "3:6: not valid YAML"),
        ("version: 2\na: [b\nc: d\n", "3:2: not valid YAML"),
        ("version: 2\nébc: é\udcff\n", "2:7: not UTF-8 text"),
        ("version: 2\na: &b [*b]\n", "2:4: an alias contains itself"),
        ('version: 2\na: "\\ud83c"\n', "2:4: half a character"),
        ("version: 2\n[a]: b\n", "2:1: a key must be a single word"),
        (HEAD + "requires: {f: r}}" + REST, "6:37: environment 'other': f=a requires f to be r"),
        (HEAD + "env: {A: b}}\n  g: {a: {env: {A: c}}}" + REST, "env"),
    ],
)
def test_a_mistake_in_a_matrix_has_its_place_and_what_to_do(tmp_path, monkeypatch, capsys, text, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_bytes(text.encode(errors="surrogateescape"))
    assert main(["check"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("envmatrix: matrix.yaml:")
    assert place in said
    assert "\n  -> " in said


def test_a_design_for_gpus_is_refused_where_there_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("envmatrix.launchers.local.has_any_gpu", lambda: False)
    (tmp_path / "matrix.yaml").write_text(f"""version: 2
factors: {{torch: {{host: {{interpreter: {sys.executable}}}}}}}
environments: {{baseline: {{}}}}
workloads: {{w: {{command: [python, x.py]}}}}
designs:
  default: {{environments: [baseline], workloads: w, gpus: all, max_blocks: 1}}
""")
    (tmp_path / "x.py").touch()
    assert main(["bench", "--engine", "local", "--quiet"]) == 4
    assert "design 'default' asks for GPUs, and this machine has none" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
    monkeypatch.setattr("envmatrix.launchers.local.has_any_gpu", lambda: True)
    assert main(["bench", "--engine", "local", "--quiet", "--name", "there"]) == 0
    (tmp_path / "results" / "there" / "trials.jsonl").unlink()
    monkeypatch.setattr("envmatrix.launchers.local.has_any_gpu", lambda: False)
    assert main(["resume", "there", "--quiet"]) == 4
    assert "asks for GPUs" in capsys.readouterr().err
    assert not (tmp_path / "results" / "there" / "trials.jsonl").exists()


def test_a_gpu_of_whatever_maker_is_one(tmp_path):
    assert not has_any_gpu(tmp_path)
    for name in ("nvidia0", "kfd", "dxg", "nvgpu"):
        (tmp_path / name / "dev").mkdir(parents=True)
        (tmp_path / name / "dev" / name).touch()
        assert has_any_gpu(tmp_path / name)


def test_where_no_user_namespace_may_be_made_a_build_says_so_and_not_that_a_disk_is_full():
    unshare = "unshare --user --map-root-user"
    argv = [*unshare.split(), "sh", "-c", f"echo 0 > /proc/sys/user/max_user_namespaces; exec {unshare} true"]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    if done.returncode == 0:
        pytest.skip("here nobody can be kept from making a user namespace")
    wrong = sif_build._build_error(Finished(tuple(argv), Exit(1, 1.0), "", done.stderr), Path("a.sif"))
    assert "cannot create user namespaces\n  -> start the container with --cap-add SYS_RESOURCE" in str(wrong)


@pytest.mark.parametrize("raised", ["OSError", "ImportError"])
def test_a_pytorch_for_cuda_that_cannot_start_says_that_there_is_no_gpu(tmp_path, monkeypatch, capsys, raised):
    if has_gpu():
        pytest.skip("this machine has a GPU")
    python = cuda_python(tmp_path / "venv", raised)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "matrix.yaml").write_text(f"""version: 2
factors: {{torch: {{host: {{interpreter: {python}}}}}}}
environments: {{baseline: {{}}}}
workloads: {{w: {{}}}}
designs: {{default: {{environments: [baseline], workloads: w}}}}
""")
    assert main(["evidence", "baseline", "--engine", "local"]) == 4
    assert "has a PyTorch for CUDA, and this machine has no GPU\n  -> " in capsys.readouterr().err
    program = ["exec", "baseline", "--engine", "local", "--", "python", "-c", "print('needs none')"]
    assert main(program) == 0, "a program of one's own may not need it"
    argv = [python, "-m", "bench", "evidence"]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.stderr.startswith("bench: error: this Python cannot import torch: libcuda.so.0: cannot open")
    assert done.stderr.endswith("this is a PyTorch for CUDA, and this machine shows no GPU (no /dev/nvidia0)\n")


def cuda_python(place, raised):
    """Make a Python whose torch needs a library of NVIDIA's driver, in a version that does not exist."""
    venv.create(place)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(place)})
    (Path(packages) / "torch").mkdir()
    (Path(packages) / "torch" / "__init__.py").write_text(f"""import ctypes
try:
    ctypes.CDLL("libcuda.so.0")
except OSError as error:
    raise {raised}(str(error))
""")
    return str(place / "bin" / "python")
