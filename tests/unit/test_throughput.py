"""Which number in a program's output is used as its speed, and when none is."""

import json
import re
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import RunError
from bench.metrics_from_program import MetricSource as TrialSource
from bench.metrics_from_program import Numbers, WantedNumbers
from envmatrix.api.user_program.metric_choice import choose_metric
from envmatrix.errors import InputError
from envmatrix.matrix.metric_sources import MetricSource
from envmatrix.matrix.program_output.throughput import (
    has_pytest_benchmark_table,
    step_line_pattern,
    throughput_candidates,
)

PRINTED = [
    case
    for file in ("printed.yaml", "outputs.yaml")
    for case in yaml.safe_load((Path(__file__).parent / "data" / file).read_text())
]


def read_in_trial(source, output):
    """Return the number that a trial parses with a metric chosen by the host."""
    metric = TrialSource("value", "regex", source.regex, None, source.better, source.unit)
    numbers = Numbers(WantedNumbers(metric))
    for line in output.split("\n"):
        numbers.look([f"{line}\n"], 0, False)
    return numbers.value(metric, 0)


@pytest.mark.parametrize("case", PRINTED, ids=[case["from"] for case in PRINTED])
def test_what_trainers_print_is_read_as_a_user_reads_it_on_the_host_and_in_a_trial(case):
    found = throughput_candidates(case["output"])
    source, why = choose_metric("", "", case["output"])
    kind, *value = case["want"]
    if kind == "wall":
        assert (found, source.wall) == ([], True), found
    elif kind == "ask":
        assert len(found) > 1
        assert source.wall
        assert "To compare one instead" in why
    elif kind == "wall-of-one":
        assert ([one.regex for one in found], source.wall) == ([""], True)
    elif kind == "wall-of-evaluation":
        assert source.wall
        assert "the only speed is that of an evaluation" in why
    else:
        (one,) = found
        assert (one.value, one.better) == (value[0], {"rate": "higher", "time": "lower"}[kind])
        assert read_in_trial(source, case["output"]) == pytest.approx(value[0], rel=1e-12)
        assert choose_metric(source.regex, "", case["output"])[0].better == one.better, "it is what the option says too"


#: Cases whose decimal number has no thousands separator, so that it can be found and multiplied by seven.
DECIMAL = [case for case in PRINTED if case["want"][0] in ("rate", "time") and "separat" not in case["from"]]
DECIMAL = [case for case in DECIMAL if re.search(rf"(?<![\w.,]){case['want'][1]}", case["output"])]


@pytest.mark.parametrize("case", DECIMAL, ids=[case["from"] for case in DECIMAL])
def test_the_pattern_of_what_trainers_print_reads_a_run_whose_decimal_numbers_are_all_others(case):
    def seven_times(number):
        return f"{7 * float(number[1]):.{len(number[1].partition('.')[2])}f}"

    source, _ = choose_metric("", "", case["output"])
    later = re.sub(r"(?<![\w.:,_])(\d+\.\d+)(?![\w.:]*:)", seven_times, case["output"])
    assert read_in_trial(source, later) in (pytest.approx(7 * case["want"][1]), case["want"][1]), (
        "or it has no decimals"
    )


@pytest.mark.parametrize(
    ("first", "later", "value"),
    [
        ("epoch 3 loss 0.5231 throughput: 100.1 img/s", "epoch 12 loss 1.2e-05 throughput: 1,017.2 img/s", 1017.2),
        ("Speed: 987.6 samples/sec  Loss: 0.5", "Speed: 1 017.2 samples/sec  Loss: 12.5", 1017.2),
        ("tok/s 987.6 mem 3", "tok/s 12.3K mem 12", 12300.0),
        ("step 1 987.6 tok/s", "step 100 12.3Ktok/s", 12300.0),
        ("10/10 [00:09<00:00,  1.02it/s, loss=0.5]", "10/10 [00:20<00:00,  2.00s/it, loss=0.5]", 0.5),
        ("10/10 [00:20<00:00,  2.00s/it, loss=0.5]", "10/10 [00:05<00:00,  2.00it/s, loss=0.5]", 0.5),
        ("3/3 [00:10<00:00, 3.40s/ batch]", "3/3 [00:02<00:00, 1.25 batch/s]", 0.8),
        ("3/3 [00:02<00:00, 1.25 batch/s]", "3/3 [00:10<00:00, 3.20s/ batch]", 0.3125),
        ("iter 10: loss 4.2, time 983.1ms", "iter 10: loss 4.2, time 1.02s", 1020.0),
        ("step 3 loss nan 96.1 it/s", "step 3 loss 0.5 97.1 it/s", 97.1),
        ("step 9 | 983.1 ms/step", "step 9 | 1.02 s/step", 1020.0),
        ("980.0 GFLOPS", "1.1 TFLOPS", 1100.0),
        ("  samples_per_second =  462.8", "  samples_per_second = 1462.8", 1462.8),
        ("{'samples_per_second': 462.8}", "{'samples_per_second': '1462.8'}", 1462.8),
        ("\x1b[32m462.8 img/s\x1b[0m", "462.9 img/s", 462.9),
        ("average throughput over 100 steps: 98.5 img/s", "average throughput over 1,000 steps: 101.5 img/s", 101.5),
    ],
)
def test_the_pattern_of_the_first_run_reads_later_runs_with_other_numbers(first, later, value):
    source, _ = choose_metric("", "", first)
    assert read_in_trial(source, later) == pytest.approx(value)


FIELDS = st.sampled_from(
    ["loss: {}", "lr={}", "memory: {} MB", "acc {}%", "eta: 0:12:34", "epoch {}", "grad_norm {}", "'loss': {}", "{} MB",
     "[{}]"]
)  # fmt: skip
SPEEDS = st.sampled_from(
    ["throughput: 123.4 img/s", "Speed: 123.4 samples/sec", "tokens_per_sec=123.4", "123.4 it/s", "FPS: 123.4",
     "'img/s': 123.4"]
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(0, 10**6).map(str), st.floats(1e-6, 1e3).map("{:.4g}".format), st.floats(1e-6, 9).map("{:.2e}".format)
)


@given(SPEEDS, st.lists(st.tuples(FIELDS, NUMBERS), max_size=3), st.lists(st.tuples(FIELDS, NUMBERS), max_size=3),
       st.sampled_from([" | ", ", ", "  ", "; ", "\t"]))  # fmt: skip
def test_losses_learning_rates_and_memory_around_a_speed_never_change_what_is_read(speed, before, after, gap):
    fields = [form.format(number) for form, number in before], [form.format(number) for form, number in after]
    output = gap.join([*fields[0], speed, *fields[1]])
    (one,) = throughput_candidates(output)
    assert (one.value, one.better) == (123.4, "higher")
    assert read_in_trial(choose_metric("", "", output)[0], output) == 123.4


@pytest.mark.parametrize(
    ("output", "value"),
    [
        ("epoch 1\nthroughput: 12.5 samples/s\nthroughput: 13.5 samples/s\n", 13.5),
        ('{"loss": 0.1, "samples_per_s": 123.4, "steps": 10}', 123.4),
        ("step 10 loss 0.5 lr 1e-3\nProcessed 1234.5 tokens/sec", 1234.5),
        ("Images/sec: 55.3", 55.3),
        ("GFLOPS = 33.2", 33.2),
        ("epoch 3: loss 0.4, 512 samples/s", 512.0),
        ("Epoch 0 step 3 loss nan 96.1 it/s", 96.1),
        ("Epoch 0 step 3 loss -inf 96.1 it/s", 96.1),
    ],
)
def test_one_number_that_looks_like_a_throughput_is_found_and_its_pattern_finds_it_again(output, value):
    (found,) = throughput_candidates(output)
    assert found.value == value
    assert read_in_trial(found, output) == value


@pytest.mark.parametrize(
    ("output", "called", "unit"),
    [
        ("throughput: 12.5 samples/s\n", "throughput", "samples/s"),
        ("throughput: 12.5\n", "throughput", ""),
        ('{"loss": 0.1, "samples_per_s": 123.4, "steps": 10}', "samples_per_s", ""),
        ("Processed 1234.5 tokens/sec", "", "tokens/sec"),
        ("Images/sec: 55.3", "Images/sec", ""),
        ("512 samples/s", "", "samples/s"),
    ],
)
def test_a_number_that_is_found_has_the_name_and_the_unit_that_the_program_gives_it(output, called, unit):
    (found,) = throughput_candidates(output)
    assert (MetricSource(regex=found.regex).label_in_output, found.unit) == (called, unit)


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
    assert MetricSource(regex=pattern).label_in_output == called


@pytest.mark.parametrize(
    ("key", "called"),
    [("out.json:speed", "speed"), ("o.json:benchmarks.0.stats.ops", "ops"), ("o.json:0.1", ""), ("o.json:a<b", "")],
)
def test_a_number_in_a_json_file_is_called_as_its_key(key, called):
    assert MetricSource(json_file=key).label_in_output == called


@pytest.mark.parametrize(
    "output", ["Downloading 12.5 MB/s", "learning speed: 42.5", "speedup: 1.8x", "took 12 s", "1 234 img/s", ""]
)
def test_what_is_no_speed_or_can_be_read_in_two_ways_is_passed_over(output):
    assert throughput_candidates(output) == []


def test_two_numbers_that_differ_are_two_and_the_options_to_type_are_told():
    output = "encoder: 12 img/s\ndecoder: 14 img/s\n"
    assert [one.label for one in throughput_candidates(output)] == ["encoder img/s", "decoder img/s"]
    source, why = choose_metric("", "", output)
    assert source.wall
    for option, value in zip(re.findall(r"--metric-regex '(.*)'  #", why), [12, 14], strict=True):
        assert read_in_trial(choose_metric(option, "", output)[0], output) == value


@pytest.mark.parametrize(
    ("entries", "number"),
    [
        ([{"model": "resnet", "images_per_s": 100.0}, {"model": "vgg", "images_per_s": 50.0}], 2),
        ([{"images_per_s": 100.0, "name": "resnet"}, {"images_per_s": 50.0, "name": "vgg"}], 2),
        ([{"batch_size": size, "images_per_s": 10.0 + size} for size in (1, 8, 64)], 3),
        ([{"model": m, "batch_size": 8, "images_per_s": 9.0 + len(m)} for m in ("vgg", "resnet18", "resnet50")], 3),
        ([{"model": m, "epoch": n, "images_per_s": 9.0 * len(m) + n} for m in ("a", "bb") for n in range(3)], 2),
        ([{"name": f"ckpt-{n}", "images_per_s": 9.0 + n} for n in range(4)], 1),
        ([{"step": n, "seq_len": 64 + 3 * n, "images_per_s": 9.0 + n} for n in range(4)], 1),
        ([{"batch_size": 8 if n < 3 else 5, "images_per_s": 9.0 + n} for n in range(4)], 1),
        ([{"epoch": epoch, "file": f"{epoch}.pt", "images_per_s": 100.0 + epoch} for epoch in range(4)], 1),
        ([{"model": "vgg", "batch_size": 8, "epoch": epoch, "images_per_s": 9.0 + epoch} for epoch in range(4)], 1),
    ],
)
def test_numbers_of_different_models_in_indented_json_are_several_and_those_of_epochs_are_one(entries, number):
    assert len(throughput_candidates(json.dumps({"results": entries}, indent=2))) == number


def test_lines_that_are_json_objects_are_the_log_of_one_training():
    lines = (json.dumps({"model": "vgg", "name": f"run {step}", "images_per_s": 99.5 + step}) for step in range(4))
    assert [number.value for number in throughput_candidates("\n".join(lines))] == [102.5]


def test_the_line_is_shown_with_its_number_marked():
    why = choose_metric("", "", "step 3 loss 0.5 throughput: 1,234.5 img/s lr 0.1\n")[1].splitlines()
    assert why[0] == "throughput, 1234.5 img/s; higher is better"
    assert why[1] == "  | step 3 loss 0.5 throughput: 1,234.5 img/s lr 0.1"
    assert why[1][why[2].index("^") : why[2].rindex("^") + 1] == "1,234.5 img/s"


def test_a_time_beyond_the_end_of_the_program_is_no_time_of_a_step():
    assert throughput_candidates("step 10 time 2.5 s", wall_s=30)[0].value == 2.5
    assert throughput_candidates("step 10 time 2.5 s", wall_s=1.0) == []


@pytest.mark.parametrize(
    ("pattern", "output", "value", "better"),
    [
        ("throughput: ([0-9.]+)", "throughput: 1,234.5 img/s", 1234.5, "higher"),
        (r"([0-9.]+) img/s", "throughput: 1,234.5 img/s", 1234.5, "higher"),
        ("throughput: ([0-9.,]+)", "throughput: 1,234.5 img/s", 1234.5, "higher"),
        ("throughput: ([0-9.]+)", "throughput: 12.3K tokens/s", 12300, "higher"),
        ("throughput: ([0-9.]+K?)", "throughput: 12.3K tokens/s", 12300, "higher"),
        ("throughput: ([0-9.,]+)", "throughput: 12.3K tokens/s", 12300, "higher"),
        ("throughput: (.*)", "throughput: 12.3K tokens/s", 12300, "higher"),
        (r"(\S+)/step", "53.1ms/step", 53.1, "lower"),
        ("latency ([0-9.]+)", "latency 12.5", 12.5, "lower"),
        (r"^(?:[^,]*,){2}([0-9.]+)", "10,200,512", 512, "higher"),
        ("acc ([0-9]+)/", "acc 97/100", 97, "higher"),
        ("loss: ([0-9.]+)", "loss: 1.5e-05", 1.5e-05, "higher"),
    ],
)
def test_a_pattern_of_the_users_own_reads_the_whole_number(pattern, output, value, better):
    source, _ = choose_metric(pattern, "", output)
    assert (read_in_trial(source, output), source.better) == (value, better)


@pytest.mark.parametrize(
    ("pattern", "output", "said"),
    [
        ("throughput: ([0-9.]+)", "throughput: 12,5 img/s", "one way only"),
        ("speed (.*)", "speed 12.5 img/s loss 0.5", "one way only"),
        ("speed (.*)", "speed high", "is no number"),
    ],
)
def test_what_a_pattern_of_the_users_own_finds_and_is_no_one_number_is_refused(pattern, output, said):
    with pytest.raises(InputError, match=said):
        choose_metric(pattern, "", output)
    with pytest.raises(RunError, match=said):
        read_in_trial(MetricSource(regex=pattern), output)


def test_the_table_of_pytest_benchmark_is_known_and_no_number_of_it_is_taken():
    table = (
        f"{'-' * 30} benchmark: 1 tests {'-' * 30}\nName (time in us)  Min  OPS (Kops/s)\ntest_sum  4.6 (1.0)  203.1\n"
    )
    assert has_pytest_benchmark_table(table)
    assert throughput_candidates(table) == []
    assert not has_pytest_benchmark_table("benchmark: 1 tests\n")


def lines(form, numbers):
    return "".join(f"{form.format(number)}\n" for number in numbers)


@pytest.mark.parametrize(
    ("form", "numbers"),
    [
        ("step {}: loss 0.5", range(20)),
        ("  [step {}/400] 12.5 img/s", range(10, 400, 10)),
        ("Iteration #{}", range(1, 90)),
        ("\x1b[1mbatch {}\x1b[0m", range(30)),
        ("train step {}", range(30)),
    ],
)
def test_lines_that_count_up_evenly_are_steps(form, numbers):
    pattern = step_line_pattern("epoch 1\n" + lines(form.strip(), numbers) + "throughput: 12.5 img/s\n")
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
        lines("elapsed: {} s, gpu 99%", range(30)),
        lines("t={} gpu 99%", range(0, 300, 10)),
        lines("Loading checkpoint shard {}/30", range(30)),
        lines("warmup step {}", range(30)),
    ],
)
def test_what_does_not_count_up_evenly_or_in_two_ways_is_no_step(output):
    assert step_line_pattern(output) == ""


@pytest.mark.parametrize("end", ["\r", "\n"])
def test_bars_of_thousands_of_states_hide_no_training_between_them(end):
    loading = "".join(f"\rLoading weights: {number}/600 [00:01<00:00, 600.1it/s]" for number in range(600))
    training = "".join(f"{number}/3000 [00:30<00:00, 100.5it/s, loss=0.5]{end}" for number in range(3000))
    validating = "".join(f"\rValidating: {number}/1700 [00:05<00:00, 333.3it/s]" for number in range(1700))
    (found,) = throughput_candidates(f"{loading}\n{training}\n{validating}\n")
    assert found.value == 100.5


def test_a_very_long_run_of_digits_is_passed_over_at_once():
    (found,) = throughput_candidates(f"throughput: 12.5 img/s\nkey {'7' * 200_000}\n")
    began = time.perf_counter()
    assert [match[1] for match in re.finditer(found.regex, f"{'7' * 200_000}\nthroughput: 12.5 img/s")] == ["12.5"]
    assert time.perf_counter() - began < 5.0, "it took minutes"
