"""Software bills of materials in CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/)."""

from __future__ import annotations

import json
import re
import uuid
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import quote

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envmatrix.build.cache import file_digest
from envmatrix.build.lockfile import Pinned
from envmatrix.version import __version__

#: Runs on the Python inside: dpkg's status file, and the licences that the packages' copyright files name, as fields
#: (DEP-5) or else by the common texts that they refer to.
PACKAGES = r"""
import json, pathlib, re
licences = {}
for file in sorted(pathlib.Path("/usr/share/doc").glob("*/copyright")):
    try:
        text = file.read_text(errors="replace")
    except OSError:
        continue
    named = re.findall(r"^License:[ \t]*(\S.*)$", text, re.M)
    named = named or re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.-]*[A-Za-z0-9])", text)
    licences[file.parent.name] = sorted({name.strip() for name in named})
print(json.dumps({"status": pathlib.Path("/var/lib/dpkg/status").read_text(), "licences": licences}))
"""
_FIELD = re.compile(r"^(Package|Version|Architecture|Status|Depends|Pre-Depends|Provides): (.*)$", re.MULTILINE)
_CLASSIFIER = "License :: OSI Approved :: "
#: What a field may say of its licence; longer is the licence's text.
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Component:
    """One package. ``needs`` are alternatives, each by name, as ``provides`` has them; ``expression``: SPDX."""

    kind: str
    name: str
    version: str
    arch: str = ""
    sha256: str = ""
    licences: tuple[str, ...] = ()
    expression: str = ""
    needs: tuple[tuple[str, ...], ...] = ()
    provides: frozenset[str] = frozenset()

    @property
    def purl(self) -> str:
        """Return its package URL (https://github.com/package-url/purl-spec)."""
        arch = f"?arch={self.arch}" if self.arch else ""
        return f"pkg:{self.kind}/{self.name}@{quote(self.version, safe='')}{arch}"

    @property
    def reference(self) -> str:
        """Return what it is called inside a bill."""
        return self.purl if self.arch or not self.sha256 else f"{self.purl}#{self.sha256[:12]}"

    def document(self) -> dict[str, object]:
        """Return it as CycloneDX has it; what is not known is not there."""
        said: dict[str, object] = {
            "type": "library", "name": self.name, "version": self.version, "purl": self.purl,
            "bom-ref": self.reference,
        }  # fmt: skip
        if self.sha256:
            said["hashes"] = [{"alg": "SHA-256", "content": self.sha256}]
        if self.expression:
            said["licenses"] = [{"expression": self.expression}]
        elif self.licences:
            said["licenses"] = [{"license": {"name": name}} for name in self.licences]
        return said


def installed_packages(said: str, pins: Sequence[Pinned]) -> list[Component]:
    """Return the Debian packages that ``PACKAGES`` saw inside; those that a lock pins have their hashes."""
    body = json.loads(said)
    hashes = {(pin.name, pin.version): pin.sha256 for pin in pins if pin.is_debian}
    found = []
    for paragraph in body["status"].split("\n\n"):
        fields = dict(_FIELD.findall(paragraph))
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            needs = (*_alternatives(fields.get("Pre-Depends", "")), *_alternatives(fields.get("Depends", "")))
            found.append(
                Component(
                    "deb/debian", name, version, fields["Architecture"], hashes.get((name, version), ""),
                    tuple(body["licences"].get(name, ())), "", needs,
                    frozenset({name, *(word for (word,) in _alternatives(fields.get("Provides", "")))}),
                )
            )  # fmt: skip
    return found


def _alternatives(field: str) -> tuple[tuple[str, ...], ...]:
    """Return the names in a relation of Debian's: 'a (>= 1) | b, c:any'."""
    groups = (
        [word.split()[0].split(":")[0] for word in group.split("|") if word.strip()] for group in field.split(",")
    )
    return tuple(tuple(group) for group in groups if group)


def locked_packages(pins: Sequence[Pinned], files: Sequence[Path] = ()) -> list[Component]:
    """Return locked wheels, and the packages that library folders were unpacked from.

    What the wheels among ``files`` say of themselves is taken from them.
    """
    by_hash = {file_digest(file): file for file in files if file.suffix == ".whl"}
    found = []
    for pin in pins:
        one = Component("deb/debian" if pin.is_debian else "pypi", pin.name, pin.version, sha256=pin.sha256)
        file = by_hash.get(pin.sha256)
        found.append(_described(one, _metadata(file)) if file else one)
    return found


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode(errors="replace"))


def _described(one: Component, said: Message) -> Component:
    classified = [str(text) for text in said.get_all("Classifier", [])]
    names = [text.removeprefix(_CLASSIFIER) for text in classified if text.startswith(_CLASSIFIER)]
    free = str(said.get("License", "")).strip()
    if not names and free and "\n" not in free and len(free) <= _LONGEST_NAME:
        names = [free]
    needs = [name for text in said.get_all("Requires-Dist", []) if (name := _needed(str(text)))]
    return replace(
        one, licences=tuple(names), expression=str(said.get("License-Expression", "")).strip(),
        needs=tuple((f"pypi:{name}",) for name in needs), provides=frozenset({f"pypi:{canonicalize_name(one.name)}"}),
    )  # fmt: skip


def _needed(text: str) -> str | None:
    """Return the package that a wheel needs without any of its extras."""
    try:
        wanted = Requirement(text)
        there = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
    except (InvalidRequirement, UndefinedEnvironmentName):
        return None
    return canonicalize_name(wanted.name) if there else None


def bill_of_materials(name: str, digest: str, components: Sequence[Component]) -> dict[str, object]:
    """Return the bill of an image whose files have that digest; the same image always gives the same one."""
    unique = {one.reference: one for one in components}
    ordered = [unique[reference] for reference in sorted(unique)]
    return with_subject(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "components": [one.document() for one in ordered],
            "dependencies": _dependencies(ordered),
        },
        name,
        digest,
    )


def _dependencies(components: Iterable[Component]) -> list[object]:
    known = {provided: one.reference for one in components for provided in one.provides}
    found: list[object] = []
    for one in components:
        chosen = (next((known[name] for name in names if name in known), None) for names in one.needs)
        found.append({"ref": one.reference, "dependsOn": sorted({ref for ref in chosen if ref} - {one.reference})})
    return found


def with_subject(bill: Mapping[str, object], name: str, digest: str) -> dict[str, object]:
    """Return a bill as that of one image, ``digest`` being the image's own ('sha256:' and hexadecimal digits)."""
    reference = f"{name}@{digest}"
    subject = {
        "type": "container", "bom-ref": reference, "name": name, "version": digest,
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
    }  # fmt: skip
    tool = {"type": "application", "name": "envmatrix", "version": __version__}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        **bill,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, reference)}",
        "metadata": {"tools": {"components": [tool]}, "component": subject},
    }
