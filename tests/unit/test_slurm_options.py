"""The sbatch options that a design may set, and how they are written."""

import pytest

from envmatrix.launchers.slurm.script import slurm_time
from envmatrix.matrix import Slurm


@pytest.mark.parametrize("word", ["a b", "a\nb", "a;b", "a'b", 'a"b', "a$b", "a`b`", "#a", "-p", ""])
def test_no_option_can_smuggle_anything_into_a_directive(word):
    for body in ({"partition": word}, {"modules": [word]}, {"options": [f"--x={word}"] if word != "-p" else ["-p"]}):
        if word == "" and "options" in body:
            continue
        with pytest.raises(ValueError, match=r"an #SBATCH line cannot contain|not an sbatch option"):
            Slurm.model_validate(body)


def test_options_that_the_script_depends_on_cannot_be_taken_over():
    for option in ("--output=x", "--array=1-3", "--nodes=2", "--wrap=x"):
        with pytest.raises(ValueError, match="set by envmatrix"):
            Slurm.model_validate({"options": [option]})


def test_slurm_reads_durations_in_minutes_rounded_up():
    assert [slurm_time(seconds) for seconds in (1, 60, 61, 5400, 90_000)] == [
        "0:01:00", "0:01:00", "0:02:00", "1:30:00", "25:00:00",
    ]  # fmt: skip
