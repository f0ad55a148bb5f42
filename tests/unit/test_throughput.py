"""Which number of a program's output is taken for its speed, and when none is."""

import re

import pytest

from envmatrix.matrix.reported import MetricSource
from envmatrix.matrix.throughput import candidates, counts_steps, is_of_pytest_benchmark


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
    ("output", "called", "unit"),
    [
        ("throughput: 12.5 samples/s\n", "throughput", "samples/s"),
        ("throughput: 12.5\n", "throughput", ""),
        ('{"loss": 0.1, "samples_per_s": 123.4, "steps": 10}', "samples_per_s", ""),
        ("Processed 1234.5 tokens/sec", "Processed", "tokens/sec"),
        ("Images/sec: 55.3", "Images/sec", ""),
        ("512 samples/s", "", "samples/s"),
    ],
)
def test_a_number_that_is_found_has_the_name_and_the_unit_that_the_program_gives_it(output, called, unit):
    (found,) = candidates(output)
    assert (MetricSource(regex=found.regex).called, found.unit) == (called, unit)


@pytest.mark.parametrize(
    ("pattern", "called"),
    [
        ("throughput: ([0-9.]+)", "throughput"),
        ('"val_acc": *([0-9.]+)', "val_acc"),
        (r"images?/s\s*[:=]\s*(\d+)", "images/s"),
        (r"throughput \(img/s\): (\d+)", "throughput (img/s)"),
        ("epoch [0-9]+ rate: ([0-9.]+)", "rate"),
        (r".*final speed=(?P<n>\d+)", "final speed"),
        (r"(?i)^took about (?:[0-9]+ or )?(\d+)", ""),
        ("[Tt]hroughput: ([0-9.]+)", ""),
        ("loss=[0-9.]+ ([0-9.]+)", ""),
        (r"fast|slow (\d+)", ""),
        (r"\w*speed (\d+)", ""),
        (r"(\d+) img/s", ""),
        (r"<script>alert (\d+)", ""),
        (f"{'long ' * 20}(x)", ""),
    ],
)
def test_a_pattern_tells_what_the_program_calls_its_number_or_nothing(pattern, called):
    assert MetricSource(regex=pattern).called == called


@pytest.mark.parametrize(
    ("key", "called"),
    [("out.json:speed", "speed"), ("o.json:benchmarks.0.stats.ops", "ops"), ("o.json:0.1", ""), ("o.json:a<b", "")],
)
def test_a_number_in_a_json_file_is_called_as_its_key(key, called):
    assert MetricSource(json_file=key).called == called


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


def lines(form, numbers):
    return "".join(f"{form.format(number)}\n" for number in numbers)


@pytest.mark.parametrize(
    ("form", "numbers"),
    [
        ("step {}: loss 0.5", range(20)),
        ("  [step {}/400] 12.5 img/s", range(10, 400, 10)),
        ("Iteration #{}", range(1, 90)),
        ("\x1b[1mbatch {}\x1b[0m", range(30)),
    ],
)
def test_lines_that_count_up_evenly_are_steps(form, numbers):
    pattern = counts_steps("epoch 1\n" + lines(form.strip(), numbers) + "throughput: 12.5 img/s\n")
    plain = lines(form.strip().replace("\x1b[1m", "").replace("\x1b[0m", ""), numbers)
    assert len(re.findall(pattern, plain, re.MULTILINE)) == len(numbers)


@pytest.mark.parametrize(
    "output",
    [
        lines("epoch {}", range(19)),
        lines("step {}", [*range(30), *range(30)]),
        lines("loss 0.{}", range(10, 60)),
        lines("loss {}", [3] * 40),
        lines("step {}", [2**number for number in range(30)]),
        "".join(f"train {number}\neval {number}\n" for number in range(30)),
        "\n" * 40 + "123\n" * 40,
    ],
)
def test_what_does_not_count_up_evenly_or_in_two_ways_is_no_step(output):
    assert counts_steps(output) == ""
