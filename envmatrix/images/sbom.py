"""Software bills of materials in CycloneDX 1.5 (https://cyclonedx.org/docs/1.5/json/)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from envmatrix import __version__
from envmatrix.images.lockfile import Pinned

_PARAGRAPH = re.compile(r"^(Package|Version|Architecture|Status): (.*)$", re.MULTILINE)


def debian_components(status: str) -> list[dict[str, object]]:
    """Return the installed packages of a dpkg status file as components."""
    found = []
    for paragraph in status.split("\n\n"):
        said = dict(_PARAGRAPH.findall(paragraph))
        if said.get("Status", "").endswith(" installed"):
            name, version, arch = said["Package"], said["Version"], said["Architecture"]
            purl = f"pkg:deb/debian/{name}@{quote(version, safe='')}?arch={arch}"
            found.append({"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl})
    return found


def locked_components(pins: Sequence[Pinned]) -> list[dict[str, object]]:
    """Return locked wheels, and the packages that library folders were unpacked from, as components."""
    return [_locked(pin, "deb/debian" if pin.is_debian else "pypi") for pin in pins]


def _locked(pin: Pinned, kind: str) -> dict[str, object]:
    purl = f"pkg:{kind}/{pin.name}@{quote(pin.version, safe='')}"
    return {
        "type": "library",
        "name": pin.name,
        "version": pin.version,
        "purl": purl,
        "bom-ref": f"{purl}#{pin.sha256[:12]}",
        "hashes": [{"alg": "SHA-256", "content": pin.sha256}],
    }


def bill_of_materials(name: str, digest: str, components: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the document; the same image always gives the same one."""
    unique = {str(component["bom-ref"]): component for component in components}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{name}@{digest}')}",
        "version": 1,
        "metadata": {
            "tools": [{"vendor": "envmatrix", "name": "envmatrix", "version": __version__}],
            "component": {"type": "container", "name": name, "version": digest},
        },
        "components": [unique[reference] for reference in sorted(unique)],
    }
