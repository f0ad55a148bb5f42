"""Bills of materials match the official schema and list what is known about each package."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from envmatrix.build.cache import file_digest
from envmatrix.build.images.sbom import bill_of_materials, installed_packages, locked_packages, with_subject
from envmatrix.build.lockfile import PinnedPackage

STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9
Provides: libc6-virtual (= 2)

Package: tool
Status: install ok installed
Architecture: amd64
Version: 1:1.0+b1
Depends: absent | libc6-virtual (>= 2.3), libc6:any

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
SAID = json.dumps({"status": STATUS, "licences": {"libc6": ["GPL-2+", "LGPL-2.1"]}})
DIGEST = "sha256:" + "0" * 64


def wheel(folder: Path, name: str, *said: str) -> tuple[PinnedPackage, Path]:
    file = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        text = "\n".join(("Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *said))
        archive.writestr(f"{name}-1.0.dist-info/METADATA", text)
    return PinnedPackage(name, "1.0", file_digest(file)), file


def test_a_bill_holds_against_the_official_schema_and_has_hashes_licences_and_dependencies(tmp_path: Path) -> None:
    torch = wheel(tmp_path, "torch", "License-Expression: BSD-3-Clause", "Requires-Dist: Num_Py>=1",
                  "Requires-Dist: absent", "Requires-Dist: extra; extra == 'x'")  # fmt: skip
    numpy = wheel(tmp_path, "num-py", "Classifier: License :: OSI Approved :: BSD License")
    extra = wheel(tmp_path, "extra", "License: MIT")
    pins, files = zip(torch, numpy, extra, strict=True)
    debian = [PinnedPackage("tool", "1:1.0+b1", "a" * 64, "tool_1%3a1.0+b1_amd64.deb")]
    bill = bill_of_materials("torch", DIGEST, [*installed_packages(SAID, debian), *locked_packages(pins, files)])
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None
    document = json.loads(json.dumps(bill))
    found = {one["name"]: one for one in document["components"]}
    assert found.keys() == {"libc6", "tool", "torch", "num-py", "extra"}
    assert found["libc6"]["licenses"] == [{"license": {"name": "GPL-2+"}}, {"license": {"name": "LGPL-2.1"}}]
    assert "hashes" not in found["libc6"]  # of the base: no lock has this package
    assert found["tool"]["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert found["torch"]["licenses"] == [{"expression": "BSD-3-Clause"}]
    assert found["num-py"]["licenses"] == [{"license": {"name": "BSD License"}}]
    assert found["extra"]["licenses"] == [{"license": {"name": "MIT"}}]
    names = {one["bom-ref"]: one["name"] for one in document["components"]}
    needs = {names[one["ref"]]: [names[ref] for ref in one["dependsOn"]] for one in document["dependencies"]}
    assert needs == {"libc6": [], "tool": ["libc6"], "torch": ["num-py"], "num-py": [], "extra": []}


def test_each_environment_of_an_image_has_a_bill_of_its_own() -> None:
    bill = bill_of_materials("torch", DIGEST, installed_packages(SAID, ()))
    one, two = (with_subject(bill, f"envmatrix/{name}", DIGEST.replace("0", name)) for name in ("1", "2"))
    assert one["serialNumber"] != two["serialNumber"]
    assert one["components"] == two["components"]
    text = json.dumps(one)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    subject = json.loads(text)["metadata"]["component"]
    assert (subject["name"], subject["version"]) == ("envmatrix/1", "sha256:" + "1" * 64)
    assert subject["hashes"] == [{"alg": "SHA-256", "content": "1" * 64}]
