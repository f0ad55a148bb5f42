"""The words of answers, warnings and errors, each with its meaning: stable identifiers, as linters' rules are.

``envmatrix docs WORD`` prints the section of docs/verdicts.md that explains one; reports link to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

#: The page of the documentation that has a section of its own for every word.
PAGE = "verdicts"

VERDICTS: Mapping[str, str] = {
    "faster": 'The whole interval of the speed-up lies above 1, and not within the margin of "same".',
    "slower": 'The whole interval of the speed-up lies below 1, and not within the margin of "same".',
    "better": "What faster is of a metric that is no speed, such as an accuracy or a size.",
    "worse": "What slower is of a metric that is no speed, such as an accuracy or a size.",
    "same": "The whole interval lies within the margin around 1 that counts as no difference.",
    "undecided": "The interval holds 1 and is wider than the margin, or there are too few blocks.",
    "not-slower": "compare: the whole interval denies that new is slower by more than is allowed.",
    "other-work": "compare: new did other work than old, so that their speeds cannot be compared.",
    "cannot-say": "compare: the data neither show nor deny that new is slower by more than is allowed.",
    "reproduced": "reproduce: the whole interval of the new speed-up over the old one lies within 5 % of 1.",
    "not-reproduced": "reproduce: that interval excludes 1, and does not lie within 5 % of it.",
}
OUTCOME_MARKS: Mapping[str, str] = {
    "fails-more": "The environment's trials break more often than those of its reference; it is not recommended.",
    "reference-fails-more": "More trials of the reference break, so it may look too fast: nothing is called slower.",
    "unproven": "Not all that the environment promises was seen in its processes; it is not recommended.",
    "not-in-effect": "Nothing in its processes reads a variable that the environment sets; it is not recommended.",
    "no-op-here": "On this machine the environment does nothing that its reference does not do.",
    "changes-numerics": "A level changes what is computed (a smaller type, other kernels): results differ by design.",
    "cpu-contention": "Other programs had the CPUs: a verdict stands only if that cannot explain the whole effect.",
    "incomplete-blocks": "In some blocks the environment or its reference has no trial that ended well.",
}
WARNINGS: Mapping[str, str] = {
    "nothing-measured": "Not one trial ended well, so nothing can be said.",
    "no-reference": "The environment that others are compared with has no trial that ended well.",
    "too-few-blocks": "There are fewer complete blocks than the least that a claim needs.",
    "control-off-1.0": "Two copies of one environment differ: something beside the environments acts on the trials.",
    "unequal-work": "The environment did other work than its reference: another loss, another number of samples.",
    "equal-work-unchecked": "Nothing shows that the program did the same work in every environment.",
    "stand-in-data": "The real data set could not be had; trials ran on generated data of the same shape.",
    "no-usable-number": "Trials ended well, but none has a number above 0 for the metric.",
    "failed-trials": "Trials crashed, or took longer than their limit.",
    "invalid-trials": "Trials ran, but were not what their environment claims.",
    "skipped-environment": "The environment cannot be had on this machine; the others go on without it.",
    "mixed-hosts": "The trials of one block ran on several machines, so that pairs do not cancel what these differ by.",
    "missing-trials": "Trials that the run had are not in trials.jsonl.",
    "trials-after-the-race": "An environment has trials from after it had left the race.",
    "drift": "All trials moved by more than 5 % from the first block to the last.",
    "disturbed": "The trials' threads waited for a CPU in more than 5 % of the time in which they could have run.",
    "steal-time": "The hypervisor gave more than 1 % of the virtual machine's time to others.",
    "cpu-quota": "A quota of the control group gave the trials less CPU time than the machine has.",
    "other-load": "Other programs ran on the machine while it measured.",
    "frequency-change": "The CPU's frequency changed by more than 10 % between trials.",
    "slow-trials": "Some trials of an environment are much slower than its others.",
    "short-run": "The run is too short to be sure of slow phases of the machine that last a minute.",
    "claims-not-verifiable": "An environment differs from its reference, but claims nothing that could be read back.",
    "not-steady": "A long look found no steady state in a workload.",
    "times-the-warm-up": "A workload's timed steps begin before its steady state does.",
    "cold-turns": "The first step of a turn that counts is slower than its last: caches are still another process's.",
    "unproven-environment": "Something that an environment promises was not seen, though nothing contradicts it.",
    "odd-process": "Threads share one CPU, lost CPUs or have their runtime twice, or a library could not be preloaded.",
    "shell-variables": "Variables of the shell that began the run act on every environment, or were left out of all.",
    "work-elsewhere": "The program may have handed its work to another one, which no environment reaches.",
    "no-gpu": "The program looked for a GPU, found none that PyTorch can use, and ran on the CPU.",
}
ERRORS: Mapping[str, str] = {
    "bad-input": "Something that was typed, or written in a file, cannot be used as it is (exit code 2).",
    "results-folder": "The folder of a run cannot be read or written; what is on disk is left as it is (exit code 2).",
    "stopped-run": "A run cannot go on; what has ended is kept (exit code 4).",
    "nothing-ran": "Not one trial could be run (exit code 4).",
    "interrupted-run": "Ctrl-C or SIGTERM came before the first answer (exit code 130).",
    "engine-error": "A container engine is not there, does not answer, or could not build (exit code 4).",
    "engine-gone": "The engine, or an image that cannot be made again, went away during the run (exit code 4).",
    "extension-error": "An engine, launcher or report of another package cannot be used (exit code 2).",
    "system-refused": "The operating system refused to read, write or start something (exit code 2).",
}
#: Every word in the order in which a reader meets them.
TOPICS: Mapping[str, str] = {**VERDICTS, **OUTCOME_MARKS, **WARNINGS, **ERRORS}
_SECTION = r"^### {}\n(.*?)(?=^#{{1,3}} |\Z)"


def explained_topics(words: Iterable[str]) -> tuple[str, ...]:
    """Return those of ``words`` that are explained, each once, in the order of the page."""
    given_words = set(words)
    return tuple(word for word in TOPICS if word in given_words)


def topic_section(page: str, word: str) -> str:
    """Return what the page's text says of a word, its heading with it; '' where it has no such section."""
    match = re.search(_SECTION.format(re.escape(word)), page, re.DOTALL | re.MULTILINE)
    return f"### {word}\n{match[1]}".rstrip() if match else ""
