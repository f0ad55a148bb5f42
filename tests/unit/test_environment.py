"""From named levels to the environment of a process."""

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from envmatrix.api import plans
from envmatrix.errors import InputError
from envmatrix.matrix import placeholders
from envmatrix.matrix.include import packaged_names
from envmatrix.matrix.parse import parse
from envmatrix.plan import environment
from envmatrix.system import host
from envmatrix.system.resource_paths import bundled_matrix_file
from tests.synthetic import HOST, NODE

FACTS = {"physical_cores": "2", "logical_cpus": "4", "gpu_cpu_list": "0-1", "cpu_list": "0-3"}


@pytest.fixture
def matrix():
    return parse(bundled_matrix_file().read_text(), bundled_matrix_file())


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


def test_a_library_for_one_image_is_held_by_that_one_alone(matrix):
    """NCCL takes 200 MB a version: no image for the CPU is to hold four of them."""
    nccl = [one for one in environment.all_libraries(matrix) if one.key == "nccl-version-2.29.7"]
    images = {
        name: environment.resolve_environment(matrix, name, FACTS).image
        for name in ("baseline", "cuda-2.13", "cuda-2.14")
    }
    assert {name: [one.is_for(image, "x86_64") for one in nccl] for name, image in images.items()} == {
        "baseline": [False], "cuda-2.13": [False], "cuda-2.14": [True]
    }  # fmt: skip
    assert all(
        one.is_for(images["baseline"], "x86_64")
        for one in environment.all_libraries(matrix)
        if one.key == "malloc-tcmalloc"
    )


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{physical_cores - 1}", "7"),
        ("{physical_cores-2}", "6"),
        ("{physical_cores / 3}", "2"),
        ("{physical_cores - 99}", "1"),
        (">= {logical_cpus / 2}", ">= 8"),
        ("{0:2}", "{0:2}"),
        ("{physical_cores * 2}", "{physical_cores * 2}"),
        ("{physical_cores - 0}", "{physical_cores - 0}"),
    ],
)
def test_a_number_in_a_template_may_be_reduced_and_counts_at_least_one_cpu(text, filled):
    assert placeholders.fill_templates(text, {"physical_cores": "8", "logical_cpus": "16"}) == filled


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ("{bind: cores, place: first}", "environment 'e': `cpus:` and srun's --cpu-bind both choose CPUs"),
        ("{bind: cores, more: threads}", "sets --cpu-bind to 'threads', but another level already sets it to 'cores'"),
    ],
)
def test_levels_that_bind_the_same_process_twice_are_refused(levels, words):
    text = f"""
version: 2
factors:
  bind: {{none: {{}}, cores: {{srun: --cpu-bind=cores}}}}
  more: {{none: {{}}, threads: {{srun: --cpu-bind=threads}}, memory: {{srun: --mem-bind=local}}}}
  place: {{any: {{}}, first: {{cpus: "0"}}}}
environments: {{baseline: {{}}, e: {levels}, both: {{bind: cores, more: memory}}}}
"""
    matrix = parse(text, Path("matrix.yaml"))
    with pytest.raises(InputError, match=words):
        environment.resolve_environment(matrix, "e", {})
    both = environment.resolve_environment(matrix, "both", {})
    assert both.srun == ("--cpu-bind=cores", "--mem-bind=local")


def test_nothing_is_subtracted_from_a_list_of_cpus():
    assert placeholders.unknown_template("{cpu_list - 1}") == "cpu_list - 1"
    assert placeholders.unknown_template("{physical_cores - 1} {cpu_list}") is None


def pci(root, address, vendor, kind, cpus):
    device = root / "sys/bus/pci/devices" / address
    device.mkdir(parents=True)
    for name, text in {"vendor": vendor, "class": kind, "local_cpulist": cpus}.items():
        (device / name).write_text(f"{text}\n")


def test_the_cpus_next_to_a_gpu_are_those_of_the_first_one_on_the_bus(tmp_path):
    assert host.cpus_of_gpu(tmp_path) == ()
    pci(tmp_path, "0000:01:00.0", "0x10de", "0x020000", "0-7")  # NVIDIA's network card
    pci(tmp_path, "0000:99:00.0", "0x10de", "0x030200", "16-23")
    pci(tmp_path, "0000:17:00.0", "0x10de", "0x030200", "8-11,24-27")
    assert host.cpus_of_gpu(tmp_path) == (8, 9, 10, 11, 24, 25, 26, 27)


def test_the_first_node_is_one_with_cpus_of_the_trial(tmp_path, monkeypatch):
    for name, cpus in {"node10": "16-23", "node2": "0-7", "node3": "8-15", "node0": ""}.items():  # node0: memory only
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(f"{cpus}\n")
    monkeypatch.setattr(host, "_NODES", tmp_path)
    machine = replace(HOST, kernel="6.1", cpus=tuple(range(24)))
    assert machine.node_facts(range(4, 24)) == {"first_node": "2", "first_node_cpu_list": "4-7"}
    assert machine.node_facts([16, 9]) == {"first_node": "3", "first_node_cpu_list": "9"}
    assert machine.node_facts([99]) == NODE.node_facts([0]) == {}


def test_a_level_next_to_the_gpu_gets_those_cpus_that_it_may_use_and_is_refused_without_them():
    text = """
version: 2
factors: {placement: {anywhere: {}, near: {cpus: "{gpu_cpu_list}", claims: {cpu.affinity_list: "{gpu_cpu_list}"}}}}
environments: {baseline: {}, near: {placement: near}}
"""
    matrix = parse(text, Path("matrix.yaml"))
    machine = replace(HOST, cpus=tuple(range(8)), physical_cpus=(0, 1, 2, 3), gpu_cpus=(2, 3, 10, 11))
    found = environment.resolve_environment(matrix, "near", machine.facts())
    assert (found.cpus, list(map(str, found.claims))) == ("2-3", ["cpu.affinity_list is 2-3"])
    for elsewhere in (replace(HOST, gpu_cpus=()), replace(machine, gpu_cpus=(10, 11)), NODE):
        with pytest.raises(InputError, match=r"'near': no value for {gpu_cpu_list}: there is no GPU here next to CPUs"):
            environment.resolve_environment(matrix, "near", elsewhere.facts())


def test_a_matrix_with_the_whole_library_is_valid_on_a_machine_without_a_gpu(tmp_path, monkeypatch):
    every = ", ".join(f"envmatrix:{name}" for name in packaged_names())
    (tmp_path / "matrix.yaml").write_text(f"version: 2\ninclude: [{every}]\nenvironments: {{baseline: {{}}}}\n")
    monkeypatch.setattr(plans, "this_host", lambda: replace(HOST, gpu_cpus=()))
    assert "near-gpu" in plans.check_matrix(tmp_path / "matrix.yaml").environments
