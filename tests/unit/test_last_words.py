"""Why a program failed, in its own words: the most informative line of its log."""

import pytest

from envmatrix.trials.failure_reason import log_tail, split_program_log, why_program_failed

ENDED = "bench: error: the command ended with exit status 1; its output is in the log\n"
CHAINED = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
KeyError: 'first'

During handling of the above exception, another exception occurred:

torch.cuda.OutOfMemoryError: CUDA out of memory
[W1122] leaked 3 semaphores
"""

#: Of torch 2.9: rank 0 fails because rank 1 did, but is seen first.
TORCHRUN = """epoch 1
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 7, in <module>
[rank1]: RuntimeError: boom
[rank0]: Traceback (most recent call last):
[rank0]: ValueError: peer gone
E1127 04:53:47 10258 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: 1) local_rank: 0 (pid: 9)
Traceback (most recent call last):
  File "torch/distributed/launcher/api.py", line 317, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 9)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
TO_ENABLE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n==="
EARLY = "\n".join(line for line in TORCHRUN.split("\n") if not line.startswith("[rank"))


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (CHAINED, "torch.cuda.OutOfMemoryError: CUDA out of memory"),
        ("all well\n./run.sh: line 2: nope: command not found\nbye\n", "./run.sh: line 2: nope: command not found"),
        ("epoch 1\nepoch 2\n", "epoch 2"),
        ("  5%|#    | 1/20\r 10%|##   | 2/20\r\x1b[31mKeyboardInterrupt\x1b[0m\n", "KeyboardInterrupt"),
        ("[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: alone\nbye\n", ": ValueError: alone"),
        (TORCHRUN, "status 1: RuntimeError: boom"),
        (TORCHRUN.replace(TO_ENABLE, "Traceback:\n    ValueError: recorded\n==="), "status 1: ValueError: recorded"),
        (
            TORCHRUN.replace(TO_ENABLE, "Signal 9 (SIGKILL) received by PID 9\n==="),
            "status 1: a worker was ended by Signal 9 (SIGKILL)",
        ),
        (EARLY.replace("epoch 1", "KeyError: 'data'"), "status 1: KeyError: 'data'"),
        (EARLY, "status 1: epoch 1"),
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


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("bench: error: the command ended with exit status 9; its output is in the log\n", 9),
        ("bench: error: the command ended with signal 9 (Killed) (out of memory); its output is in the log\n", 137),
        ("bench: error: cannot start true: No such file or directory\n", None),
    ],
)
def test_the_exit_code_and_the_output_of_a_program_come_from_its_log(tmp_path, last, code):
    log = tmp_path / "log"
    for output in ("", "one\n\n", "no newline"):
        log.write_text(output + last)
        assert split_program_log(log) == (output, code)
    log.write_text("bench: error: mine\nno end of a line")
    assert split_program_log(log) == (log.read_text(), None)
    assert split_program_log(tmp_path / "none") == ("", None)
