"""Software bills of materials (SBOMs) in CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/)."""

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
from envmatrix.build.lockfile import PinnedPackage
from envmatrix.version import __version__

#: Program for the Python inside: prints dpkg's status file and the licences in the packages' copyright files, from
#: their fields (DEP-5) or the common licence texts they refer to.
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
#: A longer licence field is the licence's text, not its name.
_MAX_NAME_LENGTH = 100


@dataclass(frozen=True)
class Component:
    """One package. ``needs`` lists alternatives, each by a name in ``provides``; ``expression`` is in SPDX form."""

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
        """Its package URL (https://github.com/package-url/purl-spec)."""
        arch = f"?arch={self.arch}" if self.arch else ""
        return f"pkg:{self.kind}/{self.name}@{quote(self.version, safe='')}{arch}"

    @property
    def reference(self) -> str:
        """Its identifier inside a bill."""
        return self.purl if self.arch or not self.sha256 else f"{self.purl}#{self.sha256[:12]}"

    def document(self) -> dict[str, object]:
        """Return the component as a CycloneDX object; unknown fields are left out."""
        document: dict[str, object] = {
            "type": "library",
            "name": self.name,
            "version": self.version,
            "purl": self.purl,
            "bom-ref": self.reference,
        }
        if self.sha256:
            document["hashes"] = [{"alg": "SHA-256", "content": self.sha256}]
        if self.expression:
            document["licenses"] = [{"expression": self.expression}]
        elif self.licences:
            document["licenses"] = [{"license": {"name": name}} for name in self.licences]
        return document


def installed_packages(output: str, pins: Sequence[PinnedPackage]) -> list[Component]:
    """Return the Debian packages in the output of ``PACKAGES``; those pinned by a lock have hashes."""
    document = json.loads(output)
    hashes = {(pin.name, pin.version): pin.sha256 for pin in pins if pin.is_debian}
    packages = []
    for paragraph in document["status"].split("\n\n"):
        fields = dict(_FIELD.findall(paragraph))
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            needs = (*_alternatives(fields.get("Pre-Depends", "")), *_alternatives(fields.get("Depends", "")))
            packages.append(
                Component(
                    "deb/debian",
                    name,
                    version,
                    fields["Architecture"],
                    hashes.get((name, version), ""),
                    tuple(document["licences"].get(name, ())),
                    "",
                    needs,
                    frozenset({name, *(word for (word,) in _alternatives(fields.get("Provides", "")))}),
                )
            )
    return packages


def _alternatives(field: str) -> tuple[tuple[str, ...], ...]:
    """Return the package names in a Debian dependency field: 'a (>= 1) | b, c:any'."""
    groups = (
        [word.split()[0].split(":")[0] for word in group.split("|") if word.strip()] for group in field.split(",")
    )
    return tuple(tuple(group) for group in groups if group)


def locked_packages(pins: Sequence[PinnedPackage], files: Sequence[Path] = ()) -> list[Component]:
    """Return locked wheels, and the packages that library folders were unpacked from.

    Metadata comes from the wheels among ``files``.
    """
    by_hash = {file_digest(file): file for file in files if file.suffix == ".whl"}
    packages = []
    for pin in pins:
        component = Component("deb/debian" if pin.is_debian else "pypi", pin.name, pin.version, sha256=pin.sha256)
        file = by_hash.get(pin.sha256)
        packages.append(_add_metadata(component, _wheel_metadata(file)) if file else component)
    return packages


def _wheel_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode(errors="replace"))


def _add_metadata(component: Component, metadata: Message) -> Component:
    classified = [str(text) for text in metadata.get_all("Classifier", [])]
    names = [text.removeprefix(_CLASSIFIER) for text in classified if text.startswith(_CLASSIFIER)]
    license_text = str(metadata.get("License", "")).strip()
    if not names and license_text and "\n" not in license_text and len(license_text) <= _MAX_NAME_LENGTH:
        names = [license_text]
    needs = [name for text in metadata.get_all("Requires-Dist", []) if (name := _required_package(str(text)))]
    return replace(
        component,
        licences=tuple(names),
        expression=str(metadata.get("License-Expression", "")).strip(),
        needs=tuple((f"pypi:{name}",) for name in needs),
        provides=frozenset({f"pypi:{canonicalize_name(component.name)}"}),
    )


def _required_package(text: str) -> str | None:
    """Return the package that a wheel requires without extras; None if the requirement does not apply."""
    try:
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    except (InvalidRequirement, UndefinedEnvironmentName):
        return None
    return canonicalize_name(requirement.name) if applies else None


def bill_of_materials(name: str, digest: str, components: Sequence[Component]) -> dict[str, object]:
    """Return the bill of an image with this files digest; the same image always gives the same bill."""
    unique = {component.reference: component for component in components}
    ordered = [unique[reference] for reference in sorted(unique)]
    return with_subject(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "components": [component.document() for component in ordered],
            "dependencies": _dependencies(ordered),
        },
        name,
        digest,
    )


def _dependencies(components: Iterable[Component]) -> list[object]:
    reference_by_name = {provided: component.reference for component in components for provided in component.provides}
    dependencies: list[object] = []
    for component in components:
        needed_references = (
            next((reference_by_name[name] for name in names if name in reference_by_name), None)
            for names in component.needs
        )
        dependencies.append(
            {
                "ref": component.reference,
                "dependsOn": sorted({ref for ref in needed_references if ref} - {component.reference}),
            }
        )
    return dependencies


def with_subject(bill: Mapping[str, object], name: str, digest: str) -> dict[str, object]:
    """Return a bill with an image as its subject; ``digest`` is the image's ('sha256:' and hexadecimal digits)."""
    reference = f"{name}@{digest}"
    subject = {
        "type": "container",
        "bom-ref": reference,
        "name": name,
        "version": digest,
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
    }
    tool = {"type": "application", "name": "envmatrix", "version": __version__}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        **bill,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, reference)}",
        "metadata": {"tools": {"components": [tool]}, "component": subject},
    }
