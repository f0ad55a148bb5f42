"""Requirements files: read as pip does, with the place of each mistake."""

import sys

import pytest

from envmatrix.build.python.venvs import BasePython
from envmatrix.errors import InputError, Where
from envmatrix.matrix import load
from envmatrix.matrix.parse import MatrixError, parse
from envmatrix.matrix.pip_requirements_files import expand_requirements

MATRIX = """version: 2
factors:
  python:
    mine: {interpreter: python3, requirements: [-r requirements.txt, numpy]}
environments: {baseline: {}}
workloads: {mine: {command: python train.py}}
designs: {default: {environments: [], workloads: mine}}
"""
FILE = """# what it needs
tqdm==4.67.1 \\
    --hash=sha256:0000000000000000000000000000000000000000000000000000000000000000 \\
    --hash=sha256:1111111111111111111111111111111111111111111111111111111111111111
--extra-index-url https://index.example/cpu   # builds without CUDA
-r more/base.txt
rich ; python_version >= "3.8"
"""


def write(folder, **files):
    for name, text in files.items():
        file = folder / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


def mistake(folder, *words):
    with pytest.raises(InputError) as caught:
        expand_requirements(words, folder, Where(folder / "matrix.yaml", 4))
    return str(caught.value)


def test_a_file_is_read_with_its_comments_hashes_continued_lines_and_the_files_that_it_names(tmp_path):
    write(
        tmp_path, requirements_txt=FILE, more__base_txt="-r ./deep.txt\nscipy>=1.0", more__deep_txt="--prefer-binary\n"
    )
    found = expand_requirements(["requirements.txt", "numpy"], tmp_path, Where(tmp_path))
    assert found.words == ("tqdm==4.67.1", "scipy>=1.0", 'rich ; python_version >= "3.8"', "numpy")
    assert found.index == ("https://index.example/cpu",)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-e .", "-e is a pip option"),
        ("--constraint pins.txt", "write the versions that this file pins"),
        ("--index-url https://x/simple", "name an additional index with `index:`"),
        ("numpy = 2", "'numpy = 2' is not a valid requirement"),
        ("-r requirements.txt", "includes itself"),
        ("-r gone.txt", "gone.txt' cannot be read"),
    ],
)
def test_what_is_no_requirement_is_told_with_its_line(tmp_path, line, said):
    write(tmp_path, requirements_txt=f"tqdm\n\n{line}\n")
    text = mistake(tmp_path, "-r requirements.txt")
    assert said in text
    assert said.startswith(("names", "gone")) or f"{tmp_path}/requirements.txt:3: " in text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_of_a_pyproject_the_dependencies_of_its_project_are_taken(tmp_path):
    write(tmp_path, pyproject_toml='[project]\nname = "x"\ndependencies = ["tqdm>=4", "numpy"]\n')
    assert expand_requirements(["pyproject.toml"], tmp_path, Where(tmp_path)).words == ("tqdm>=4", "numpy")
    write(tmp_path, pyproject_toml="[tool.poetry]\n")
    assert "`[project]` has no `dependencies`" in mistake(tmp_path, "pyproject.toml")


def test_a_matrix_holds_what_its_files_of_requirements_said(tmp_path):
    write(tmp_path, matrix_yaml=MATRIX, requirements_txt="--extra-index-url https://x/cpu\ntqdm==4\n")
    matrix = load(tmp_path / "matrix.yaml")
    level = matrix.factors["python"].levels["mine"]
    assert (level.requirements, level.index) == (("tqdm==4", "numpy"), "https://x/cpu")
    elsewhere = parse(matrix.text, tmp_path / "elsewhere" / "matrix.yaml")
    assert elsewhere.factors == matrix.factors
    write(tmp_path, requirements_txt="tqdm==5\n")
    assert load(tmp_path / "matrix.yaml").digest != matrix.digest


def test_a_file_of_requirements_that_is_gone_is_told_where_it_is_named(tmp_path):
    write(tmp_path, matrix_yaml=MATRIX)
    with pytest.raises(MatrixError, match=r"matrix\.yaml:4:48: requirements: .*requirements\.txt' cannot be read"):
        load(tmp_path / "matrix.yaml")


def test_a_package_that_is_upgraded_makes_another_base():
    old, new = BasePython(("/x",), (("torch", "2.12"),), ()), BasePython(("/x",), (("torch", "2.13"),), ())
    assert old.digest != new.digest
