"""OCI labels of images (https://specs.opencontainers.org/image-spec/annotations/), equal for manual and tool builds.

Labels are part of an image's configuration, not of its files. Values known only at build time are passed as build
arguments, and are empty if they are not given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from envmatrix.build.debian.minimal_base import SOURCE_DATE_EPOCH
from envmatrix.errors import EnvmatrixError
from envmatrix.plan.environment import Environment
from envmatrix.system.process import run
from envmatrix.version import __version__

_OCI = "org.opencontainers.image."
TITLE = f"{_OCI}title"
SOURCE, REVISION = f"{_OCI}source", f"{_OCI}revision"
#: The licence of bench/; the bill of materials has the licences of everything else.
LICENCE = "Apache-2.0"
#: Label -> the build argument with its value.
OF_BUILD: Mapping[str, str] = {
    f"{_OCI}version": "VERSION",
    f"{_OCI}base.name": "BASE_NAME",
    f"{_OCI}base.digest": "BASE_DIGEST",
    "org.envmatrix.lock": "LOCK",
    "org.envmatrix.bench": "BENCH",
}
#: The same for labels known only to the publisher of an image.
OF_PUBLISHER: Mapping[str, str] = {SOURCE: "SOURCE", REVISION: "REVISION"}
_GIT_S = 10.0
#: ssh URL without a scheme: user@host:path.
_SCP = re.compile(r"[\w.-]+@[\w.-]+:[^/:]")


def image_title(image: str) -> str:
    """Return the title of an image shared by several environments."""
    return f"envmatrix image {image}"


def image_labels(image: str, environment: Environment | None) -> dict[str, str]:
    """Return the labels of an image, or of a named environment on it."""
    created = datetime.fromtimestamp(int(SOURCE_DATE_EPOCH), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {TITLE: image_title(image), f"{_OCI}created": created, f"{_OCI}licenses": LICENCE}
    return {**labels, **(named_labels(environment) if environment else {})}


def named_labels(environment: Environment) -> dict[str, str]:
    """Return the additional labels of a named environment's image."""
    return {
        TITLE: f"envmatrix/{environment.name}",
        f"{_OCI}description": environment.description or environment.name,
        "org.envmatrix.levels": json.dumps(dict(environment.levels), sort_keys=True),
    }


def derived_image_labels(environment: Environment, publisher: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of an image derived from another, which an older version may have built."""
    return {**named_labels(environment), f"{_OCI}version": __version__, **publisher}


def publisher_labels(folder: Path) -> dict[str, str]:
    """Return the source URL and revision of the git checkout that contains ``folder``; '' if there is none."""
    existing_folder = next((place for place in (folder, *folder.resolve().parents) if place.is_dir()), Path("/"))
    revision = _git_output(existing_folder, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    return {
        SOURCE: url_without_credentials(_git_output(existing_folder, "remote", "get-url", "origin")),
        REVISION: revision,
    }


def _git_output(folder: Path, *git_arguments: str) -> str:
    try:
        result = run(["git", "-C", str(folder), *git_arguments], limit_s=_GIT_S)
    except (EnvmatrixError, OSError):
        return ""
    return result.stdout.strip() if result.exit.ok else ""


def url_without_credentials(url: str) -> str:
    """Return a git URL without user, password and query; '' for anything else, such as a local folder."""
    if _SCP.match(url):
        return url
    url_parts = urlsplit(url)
    if url_parts.scheme not in {"http", "https", "ssh", "git"} or not url_parts.hostname:
        return ""
    return urlunsplit((url_parts.scheme, url_parts.netloc.rpartition("@")[2], url_parts.path, "", ""))
