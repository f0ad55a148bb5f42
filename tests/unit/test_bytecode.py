"""The benchmark is compiled once for each Python, and what runs is its source all the same."""

import os
import sys

from envmatrix.__main__ import main
from envmatrix.build.cache import Cache
from envmatrix.build.paths import BuildPaths
from envmatrix.build.python.bench_bytecode import compile_bench
from envmatrix.system.process import run
from tests.unit.test_resumed import PLAIN


def test_a_compiled_benchmark_is_not_compiled_again_and_a_source_that_changed_without_a_trace_runs(tmp_path):
    bench = tmp_path / "cache" / "bench" / "1" / "bench"
    bench.mkdir(parents=True)
    source = bench / "module.py"
    source.write_text("print(1)")
    places = BuildPaths(Cache(tmp_path / "cache"), tmp_path, bench)
    compile_bench(places, sys.executable, "3.11")
    (compiled,) = bench.glob("__pycache__/module.*.pyc")
    had = source.stat()
    source.write_text("print(2)")
    os.utime(source, ns=(had.st_atime_ns, had.st_mtime_ns))
    done = run([sys.executable, "-c", "import module"], limit_s=60, env={"PYTHONPATH": str(bench)})
    assert done.stdout == "2\n"
    compiled.unlink()
    compile_bench(places, sys.executable, "3.11")
    assert not compiled.exists()
    compile_bench(places, sys.executable, "3.12")  # another Python at the same path
    assert compiled.exists()


def test_the_source_of_the_benchmark_gets_no_compiled_files(tmp_path):
    (tmp_path / "module.py").write_text("")
    compile_bench(BuildPaths(Cache(tmp_path / "cache"), tmp_path, tmp_path), sys.executable, "3.11")
    assert [file.name for file in tmp_path.iterdir()] == ["module.py"]


def test_the_trials_of_a_run_find_the_benchmark_compiled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "matrix.yaml").write_text(PLAIN.replace("PYTHON", sys.executable))
    assert main(["bench", "--engine", "local", "--quiet"]) == 0
    assert list((tmp_path / "cache" / "bench").glob("*/bench/__pycache__/user_program.*.pyc"))
