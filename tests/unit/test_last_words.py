"""Why a program failed, in its own words: the most informative line of its log."""

import pytest

from envmatrix.trials.failure_reason import log_tail, why_program_failed

ENDED = "bench: error: the command ended with exit status 1; its output is in the log\n"
CHAINED = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
KeyError: 'first'

During handling of the above exception, another exception occurred:

torch.cuda.OutOfMemoryError: CUDA out of memory
[W1122] leaked 3 semaphores
"""


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (CHAINED, "torch.cuda.OutOfMemoryError: CUDA out of memory"),
        ("all well\n./run.sh: line 2: nope: command not found\nbye\n", "./run.sh: line 2: nope: command not found"),
        ("epoch 1\nepoch 2\n", "epoch 2"),
        ("  5%|#    | 1/20\r 10%|##   | 2/20\r\x1b[31mKeyboardInterrupt\x1b[0m\n", "KeyboardInterrupt"),
        ("", "printed nothing"),
    ],
)
def test_a_programs_own_error_line_is_the_reason(tmp_path, output, why):
    log = tmp_path / "log"
    log.write_text(output + ENDED)
    assert why_program_failed(log).startswith("the command ended with exit status 1")
    assert why_program_failed(log).endswith(why)


def test_what_the_benchmark_itself_found_is_the_reason_as_it_stands(tmp_path):
    log = tmp_path / "log"
    log.write_text("ValueError: caught and passed over\nbench: error: metric not found: 'x' matched nothing\n")
    assert why_program_failed(log) == "metric not found: 'x' matched nothing"


def test_a_log_that_is_not_there_or_has_no_last_word_says_nothing(tmp_path):
    assert why_program_failed(tmp_path / "none") == ""
    (tmp_path / "log").write_text("killed before it could say why\n")
    assert why_program_failed(tmp_path / "log") == ""
    assert log_tail(None) == []


def test_an_error_that_names_no_cause_is_told_with_it(tmp_path):
    log = tmp_path / "log"
    log.write_text("RuntimeError: operator torchvision::nms does not exist\n" + ENDED)
    assert why_program_failed(log).endswith("install both from one index)")
