"""Validate values of matrix.yaml, so that no later command rejects what `envmatrix check` accepted."""

from __future__ import annotations

import math
import re

from packaging.requirements import InvalidRequirement, Requirement

from envmatrix.matrix import templates
from envmatrix.system.host import parse_cpus

_SUITE = re.compile(r"[a-z][a-z0-9-]*\Z")
_BASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]*\Z")
_PYTHON = re.compile(r"\d+(\.\d+){0,2}t?\Z")
_MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]*\Z")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+\Z")


def check_cpu_list(value: str) -> str:
    """Check a list of CPUs or NUMA nodes; it may be a template."""
    unknown = templates.unknown_template(value)
    if unknown:
        msg = f"unknown template {{{unknown}}}; known: {', '.join(templates.TEMPLATE_NAMES)}"
        raise ValueError(msg)
    parse_cpus(templates.fill_templates(value, templates.SAMPLE_VALUES))
    return value


def check_machine_cpus(value: str) -> str:
    """Check a list of CPUs without templates."""
    parse_cpus(value)
    return value


def read_cpu_quota(value: object) -> float:
    """Read a CPU quota in CPUs; the kernel's minimum is 0.01 (1 ms of 100)."""
    try:
        cpus = float(str(value))
    except ValueError:
        cpus = math.nan
    if not 0.01 <= cpus <= 10_000:
        msg = f"{value!r} is not a number of CPUs of at least 0.01, such as 1 or 1.5"
        raise ValueError(msg)
    return cpus


def check_suite(value: str) -> str:
    """Check the name of a Debian suite."""
    return _check_match(_SUITE, value, "a Debian suite, such as bookworm, trixie or sid")


def check_base_image(value: str) -> str:
    """Check an image reference."""
    return _check_match(_BASE, value, "an image, such as debian:bookworm-slim@sha256:...")


def check_ready_image(value: str) -> str:
    """Check an image that is used unchanged: a reference in Docker's form, or a file."""
    return (
        value
        if is_image_file(value)
        else _check_match(_BASE, value, "an image, such as org/name:tag, or a .tar or .sif file")
    )


def is_image_file(value: str) -> bool:
    """Return whether an image is named by a file: a Docker archive or a SIF."""
    return value.endswith((".sif", ".tar", ".tar.gz", ".tgz")) or value.startswith(("/", "./", "../", "~"))


def check_python_version(value: str) -> str:
    """Check a Python version."""
    return _check_match(_PYTHON, value, "a Python version, such as 3.11 or 3.13t")


def check_requirement(value: str) -> str:
    """Check an argument of pip install: a requirement, or the path of a wheel; never an option."""
    if not value.startswith("-") and ("/" in value or value.endswith(".whl")) and " @ " not in value:
        return value
    try:
        address = Requirement(value).url
    except InvalidRequirement as error:
        msg = f"{value!r} is not a valid requirement, such as numpy==2.3.5: {str(error).splitlines()[0]}"
        raise ValueError(msg) from None
    if address and not re.match(r"[a-z][a-z+]*:", address):
        msg = f"{value!r} is not a valid requirement, such as numpy==2.3.5: {address!r} is not a URL"
        raise ValueError(msg)
    return value


def check_debian_packages(value: str) -> str:
    """Check names of Debian packages; '|' separates alternatives."""
    for name in value.split("|"):
        _check_match(_PACKAGE, name.strip(), "a Debian package, such as libjemalloc2")
    return value


def check_module(value: str) -> str:
    """Check the name of an environment module."""
    return _check_match(_MODULE, value, "the name of a module, such as PyTorch/2.9.1")


def check_argument(value: str) -> str:
    """Check an argument of a program: it must not be empty or an option."""
    if not value.strip() or value.startswith("-"):
        msg = f"{value!r} is not valid: it must not be empty, nor begin with '-'"
        raise ValueError(msg)
    return value


def _check_match(pattern: re.Pattern[str], value: str, description: str) -> str:
    if not pattern.match(value):
        msg = f"{value!r} is not {description}"
        raise ValueError(msg)
    return value
