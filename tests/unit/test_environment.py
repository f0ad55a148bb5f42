"""From named levels to what a process gets."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from envmatrix.errors import InputError
from envmatrix.matrix.parse import parse
from envmatrix.plan import environment
from envmatrix.system.project import default_matrix

FACTS = {"physical_cores": "2", "logical_cpus": "4"}


@pytest.fixture
def matrix():
    return parse(default_matrix().read_text(), default_matrix())


def test_the_book_recipe_is_what_the_book_says(matrix):
    book = environment.resolve_environment(matrix, "book", FACTS)
    assert dict(book.variables) == {
        "OMP_NUM_THREADS": "2",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "KMP_BLOCKTIME": "0",
    }
    assert book.preload == (("openmp-intel-2023.1", "libiomp5.so"),)
    assert "threads is 2" in map(str, book.claims)


def test_a_factorial_cell_is_found_by_the_name_in_its_report(matrix):
    found = environment.resolve_environment(matrix, "malloc-tcmalloc+openmp-intel", FACTS)
    assert (found.levels["malloc"], found.levels["openmp"]) == ("tcmalloc", "intel")
    with pytest.raises(InputError, match="no environment"):
        environment.resolve_environment(matrix, "malloc-tcmalloc+openmp-absent", FACTS)


def test_images_of_a_factorial_design_are_known_before_it_runs():
    text = """
version: 1
factors: {torch: {old: {requirements: [torch==1]}, new: {requirements: [torch==2]}}, malloc: {glibc: {}}}
environments: {baseline: {}}
workloads: {cnn: {model: fashion-cnn}}
designs: {d: {factors: {torch: [old, new]}, workloads: cnn}}
"""
    assert list(environment.all_images(parse(text, Path("m.yaml")))) == ["torch-old", "torch-new"]


@pytest.mark.parametrize("key", ["cpus", "memory_nodes"])
@pytest.mark.parametrize("value", ["abc", "3-1", "0-", "0-9999999999", "²"])
def test_a_place_that_is_no_list_of_numbers_is_told_before_anything_runs(key, value):
    text = f"""
version: 1
factors: {{place: {{here: {{}}, there: {{{key}: {value}}}}}}}
environments: {{baseline: {{}}, there: {{place: there}}}}
"""
    with pytest.raises(InputError, match=rf"m\.yaml:3:\d+: {key}: '{value}' is not a CPU list"):
        environment.resolve_environment(parse(text, Path("m.yaml")), "there", {})


def test_a_place_may_be_a_template():
    text = """
version: 1
factors: {place: {here: {}, there: {cpus: "0-{last_cpu}"}}}
environments: {baseline: {}, there: {place: there}}
"""
    matrix = parse(text, Path("m.yaml"))
    assert environment.resolve_environment(matrix, "there", {}).cpus == "0-{last_cpu}"
    assert environment.resolve_environment(matrix, "there", {"last_cpu": "3"}).cpus == "0-3"


def test_allocators_are_preloaded_before_openmp(matrix):
    assert [file for _, file in environment.resolve_environment(matrix, "pytorch-ci", FACTS).preload] == [
        "libjemalloc.so.2",
        "libiomp5.so",
    ]


def test_list_variables_of_two_levels_are_joined(matrix):
    chosen = {"malloc": "glibc-tuned", "hugepages": "glibc"}
    found = environment.build_environment(matrix, "both", chosen, FACTS).variables["GLIBC_TUNABLES"]
    assert found.endswith("trim_threshold=536870912:glibc.malloc.hugetlb=1")


def test_a_level_that_does_not_fit_names_what_it_requires(matrix):
    with pytest.raises(InputError, match=r"requires openmp to be intel or intel-2023\.1 or llvm, not gnu"):
        environment.build_environment(matrix, "bad", {"affinity": "compact"}, FACTS)


def test_two_levels_that_set_one_variable_differently_are_refused():
    text = """
version: 1
factors: {a: {x: {env: {V: 1}}}, b: {y: {env: {V: 2}}}}
environments: {baseline: {}}
"""
    with pytest.raises(InputError, match="V to '2', but another level already sets it to '1'"):
        environment.resolve_environment(parse(text, Path("m")), "baseline", {})


def test_setting_levels_share_one_image(matrix):
    resolved = [environment.resolve_environment(matrix, name, FACTS) for name in matrix.environments]
    names = {env.image.name for env in resolved if env.levels["torch"] == "2.13.0"}
    assert names == {"torch-2.13.0"}
    assert len({env.image.name for env in resolved}) == len({env.levels["torch"] for env in resolved})


def test_an_environment_survives_its_way_through_json(matrix):
    kept = TypeAdapter(environment.Environment)
    for name in matrix.environments:
        one = environment.resolve_environment(matrix, name, FACTS)
        assert kept.validate_json(kept.dump_json(one)) == one
