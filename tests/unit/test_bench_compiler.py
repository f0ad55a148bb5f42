"""Torch's compiler is put off until something of it is used, and is then the real one for everybody."""

import importlib
import sys
import textwrap

import pytest

from bench import compiler


@pytest.fixture
def torch(tmp_path, monkeypatch):
    """Import a package that is laid out as torch is, with a compiler that counts its imports."""
    inside = tmp_path / "torch" / "_dynamo"
    inside.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("imported = []\n")
    body = "import torch\ntorch.imported.append(__name__)\ndef is_compiling(): return 'really'\n"
    (inside / "__init__.py").write_text(body)
    (inside / "config.py").write_text("verbose = True\n")
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "torch"}
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("torch")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        del sys.modules[name]
    sys.modules.update(before)


def used_as_an_optimiser_does():
    """Do what torch.optim does at its first step (torch 2.x)."""
    found = {}
    exec(
        textwrap.dedent("""
        import torch._dynamo
        step = torch._dynamo.disable(max, True, wrapping=False)
        torch._dynamo.graph_break()
        """),
        found,
    )
    return found["step"]


def test_what_an_optimiser_wants_of_it_imports_nothing(torch):
    assert compiler.put_off()
    assert used_as_an_optimiser_does() is max
    assert torch._dynamo.disable(recursive=False)(max) is max
    assert torch.imported == []


def test_all_else_brings_the_real_one_for_everybody(torch):
    compiler.put_off()
    stand_in = torch._dynamo
    assert torch._dynamo.is_compiling() == "really"
    assert stand_in.is_compiling() == "really", "also for who kept what stood for it"
    assert torch.imported == ["torch._dynamo"]
    assert sys.modules["torch._dynamo"] is torch._dynamo is not stand_in


def test_so_does_the_import_of_a_part_of_it(torch):
    compiler.put_off()
    config = importlib.import_module("torch._dynamo.config")
    assert config.verbose
    assert torch._dynamo.config is config
    assert torch.imported == ["torch._dynamo"]


def test_whoever_walks_through_all_modules_does_not_import_it(torch):
    compiler.put_off()
    assert not [name for name in ("__file__", "__warningregistry__") if hasattr(torch._dynamo, name)]
    assert torch.imported == []


def test_one_that_is_there_already_stays(torch):
    real = importlib.import_module("torch._dynamo")
    assert not compiler.put_off()
    assert torch._dynamo is real


def test_a_torch_without_a_compiler_is_left_as_it_is(torch, tmp_path):
    for file in (tmp_path / "torch" / "_dynamo").glob("*.py"):
        file.unlink()
    (tmp_path / "torch" / "_dynamo").rmdir()
    importlib.invalidate_caches()
    assert not compiler.put_off()
    assert "torch._dynamo" not in sys.modules
