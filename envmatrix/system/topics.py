"""Names of verdicts, marks, warnings and errors with their meanings: stable identifiers, like a linter's rules.

``envmatrix docs WORD`` prints the section of docs/verdicts.md on one of them, and reports link to it. Other terms are
in docs/glossary.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

#: The documentation page with a section for every word.
PAGE = "verdicts"

VERDICTS: Mapping[str, str] = {
    "faster": 'The whole interval of the speed-up is above 1, and not within the margin of "same".',
    "slower": 'The whole interval of the speed-up is below 1, and not within the margin of "same".',
    "better": "Like faster, for a metric that is not a speed, such as an accuracy or a size.",
    "worse": "Like slower, for a metric that is not a speed, such as an accuracy or a size.",
    "same": "The speed-up is surely within the margin around 1 that counts as no difference.",
    "undecided": "The interval includes 1 and is wider than the margin, or there are too few blocks.",
    "not-slower": "compare: a slow-down larger than allowed is excluded with 95 % confidence.",
    "other-work": "compare: the new side did other work than the old one, so their speeds cannot be compared.",
    "cannot-say": "compare: the data neither show nor exclude a slow-down larger than allowed.",
    "reproduced": "reproduce: the whole interval of the new speed-up over the old one is within 5 % of 1.",
    "not-reproduced": "reproduce: that interval excludes 1, and is not within 5 % of it.",
}
OUTCOME_MARKS: Mapping[str, str] = {
    "fails-more": "More of the environment's trials fail than of its reference's; it is not recommended.",
    "reference-fails-more": "More trials of the reference fail, so it may look too fast; nothing is called slower.",
    "unproven": "Not every setting of the environment was verified in its processes; it is not recommended.",
    "not-in-effect": "No process reads a variable that the environment sets; it is not recommended.",
    "no-op-here": "On this machine the environment changes nothing compared with its reference.",
    "changes-numerics": "A level changes what is computed (a smaller type, other kernels); results differ by design.",
    "cpu-contention": "Other programs used the CPUs; a verdict counts only if that cannot explain the whole effect.",
    "incomplete-blocks": "In some blocks the environment or its reference has no successful trial.",
}
WARNINGS: Mapping[str, str] = {
    "nothing-measured": "No trial was successful, so there is no result.",
    "no-reference": "The environment that others are compared with has no successful trial.",
    "failed-trials": "Trials crashed, or exceeded their time limit.",
    "invalid-trials": "Trials ran, but did not have the settings of their environment.",
    "unequal-work": "The environment did other work than its reference: another loss, another number of samples.",
    "no-usable-number": "Trials were successful, but none has a number above 0 for the metric.",
    "control-off-1.0": "Two copies of one environment differ: something else affects the trials.",
    "disturbed": "CPU contention: threads were runnable but waited for a CPU more than 5 % of the time.",
    "cpu-quota": "A CPU quota of the control group limits the trials.",
    "unproven-environment": "Some setting of an environment was not verified, although nothing contradicts it.",
    "work-elsewhere": "The program may have given its work to another one, which no environment reaches.",
    "no-gpu": "The program looked for a GPU, found none that PyTorch can use, and ran on the CPU.",
    "too-few-blocks": "There are fewer complete blocks than a verdict needs.",
    "skipped-environment": "The environment is not available on this machine; the others continue without it.",
    "missing-trials": "Trials of the run are missing in trials.jsonl.",
    "mixed-hosts": "The trials of one block ran on several machines, so their differences do not cancel.",
    "other-load": "Other programs ran on the machine during the measurement.",
    "steal-time": "The hypervisor gave more than 1 % of the virtual machine's time to others.",
    "slow-trials": "Outliers: some trials of an environment are much slower than the others.",
    "equal-work-unchecked": "Nothing shows that the program did the same work in every environment.",
    "stand-in-data": "The real data set was not available; trials used generated data of the same shape.",
    "odd-process": "Threads share one CPU, lost CPUs or load their runtime twice, or a library failed to preload.",
    "shell-variables": "Variables of your shell affect every environment, or were left out of all.",
    "times-the-warm-up": "A workload's timed steps begin before its steady state.",
    "not-steady": "A steady-state run found no steady state in a workload.",
    "cold-turns": "The first counted step of a turn is slower than its last: the caches are still cold.",
    "short-run": "The run is short, so its intervals describe the machine during those minutes only.",
    "drift": "All trials changed by more than 5 % from the first block to the last.",
    "frequency-change": "The CPU's frequency changed by more than 10 % between trials.",
    "claims-not-verifiable": "An environment differs from its reference, but has no check that can be verified.",
    "trials-after-the-race": "An environment has trials from after it had left the race.",
}
ERRORS: Mapping[str, str] = {
    "bad-input": "An argument or a file has an error (exit code 2).",
    "results-folder": "The folder of a run cannot be read or written; files on disk stay as they are (exit code 2).",
    "stopped-run": "A run cannot continue; finished trials are kept (exit code 4).",
    "nothing-ran": "No trial could run (exit code 4).",
    "interrupted-run": "Ctrl-C or SIGTERM came before the first answer (exit code 130).",
    "engine-error": "A container engine is missing, does not answer, or could not build (exit code 4).",
    "engine-gone": "The engine, or an image that cannot be rebuilt, disappeared during the run (exit code 4).",
    "extension-error": "An engine, launcher or report of another package cannot be used (exit code 2).",
    "system-refused": "The operating system refused to read, write or start something (exit code 2).",
}
#: Every word, in the order in which a reader meets them.
TOPICS: Mapping[str, str] = {**VERDICTS, **OUTCOME_MARKS, **WARNINGS, **ERRORS}
#: The page that explains other terms in one line each.
GLOSSARY = "glossary"
_SECTION = r"^### {}\n(.*?)(?=^#{{1,3}} |\Z)"
_TERM = re.compile(r"^### (.*)\n\n(.*?)(?: \*Also: (.*)\.\*)?$", re.MULTILINE)


def explained_topics(words: Iterable[str]) -> tuple[str, ...]:
    """Return the topics among ``words``, each once, in the order of the page."""
    given_words = set(words)
    return tuple(word for word in TOPICS if word in given_words)


def topic_section(page: str, word: str) -> str:
    """Return a word's section in the page's text, with its heading; '' if there is none."""
    match = re.search(_SECTION.format(re.escape(word)), page, re.DOTALL | re.MULTILINE)
    return f"### {word}\n{match[1]}".rstrip() if match else ""


def terms(page: str) -> dict[str, str]:
    """Return the glossary's entry for each term and each of its other names."""
    return {
        name: f"{term}: {line}"
        for term, line, others in _TERM.findall(page)
        for name in (term, *filter(None, others.split(", ")))
    }


def plain(word: str) -> str:
    """Return a term in the form used for lookup: lower case, spaces, no plural ending."""
    return re.sub(r"[\s_-]+", " ", word.strip().lower()).removesuffix("s")
