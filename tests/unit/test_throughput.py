"""Which number of a program's output is taken for its speed, and when none is."""

import re

import pytest

from envmatrix.matrix.throughput import candidates, is_of_pytest_benchmark


@pytest.mark.parametrize(
    ("output", "value"),
    [
        ("epoch 1\nthroughput: 12.5 samples/s\nthroughput: 13.5 samples/s\n", 13.5),
        ('{"loss": 0.1, "samples_per_s": 123.4, "steps": 10}', 123.4),
        ("step 10 loss 0.5 lr 1e-3\nProcessed 1234.5 tokens/sec", 1234.5),
        ("Images/sec: 55.3", 55.3),
        ("GFLOPS = 33.2", 33.2),
        ("epoch 3: loss 0.4, 512 samples/s", 512.0),
    ],
)
def test_one_number_that_looks_like_a_throughput_is_found_and_its_pattern_finds_it_again(output, value):
    (found,) = candidates(output)
    assert found.value == value
    assert float(re.findall(found.regex, output)[-1]) == value


@pytest.mark.parametrize(
    "output",
    [
        "100%|####| 10/10 [00:01<00:00, 9.5it/s]",
        "Downloading 12.5 MB/s",
        "speed 42.5",
        "1,234.5 samples/s",
        "1.2 s/it",
        "",
    ],
)
def test_what_is_no_throughput_or_no_plain_number_is_passed_over(output):
    assert candidates(output) == []


def test_two_numbers_are_two():
    assert [one.label for one in candidates("train: 12 img/s\neval: 14 img/s\n")] == ["train img/s", "eval img/s"]


def test_the_table_of_pytest_benchmark_is_known_and_no_number_of_it_is_taken():
    table = (
        f"{'-' * 30} benchmark: 1 tests {'-' * 30}\nName (time in us)  Min  OPS (Kops/s)\ntest_sum  4.6 (1.0)  203.1\n"
    )
    assert is_of_pytest_benchmark(table)
    assert candidates(table) == []
    assert not is_of_pytest_benchmark("benchmark: 1 tests\n")
