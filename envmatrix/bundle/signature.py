"""Sign and verify a manifest with OpenSSH's own tool: the keys people already have, no new ones to manage."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from envmatrix.errors import EnvmatrixError, InputError, StoreError, Where
from envmatrix.system.process import Finished, run

_SPACE = "envmatrix-pack"
_LIMIT_S = 60.0


def _keygen(*arguments: str, text: str | None = None) -> Finished:
    if not shutil.which("ssh-keygen"):
        raise EnvmatrixError("signatures need ssh-keygen (OpenSSH 8.2 or newer)", remedy="install openssh-client")
    return run(["ssh-keygen", "-Y", *arguments], limit_s=_LIMIT_S, input_text=text)


def sign(text: str, key: Path) -> bytes:
    """Return the signature of a manifest with an SSH key (its public half may name a key in an agent)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "manifest.json"
        file.write_text(text, encoding="utf-8")
        done = _keygen("sign", "-f", str(key), "-n", _SPACE, str(file))
        signature = file.with_name(f"{file.name}.sig")
        if not done.exit.ok or not signature.exists():
            raise InputError(f"the manifest could not be signed: {done.last_words(1)}", remedy="check --sign KEY")
        return signature.read_bytes()


def verify(text: str, signature: bytes | None, signers: Path | None, archive: Path) -> str:
    """Check who signed a manifest, and say it in one line.

    ``signers`` is a file of allowed signers (ssh-keygen(1)): with it, an archive that none of them signed is a
    StoreError. Without it the line says which key signed, and that nobody vouches for it.
    """
    if signature is None:
        if signers:
            raise StoreError("the archive is not signed", where=Where(archive), remedy="ask for a signed one")
        return "not signed: its checksums show damage, but not who made it"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "signature"
        file.write_bytes(signature)
        if signers is None:
            done = _keygen("check-novalidate", "-n", _SPACE, "-s", str(file), text=text)
            _refuse(done, archive)
            key = re.search(r"key (SHA256:\S+)", done.stdout)
            return f"signed by key {key[1] if key else 'unknown'}, which --signers does not name"
        found = _keygen("find-principals", "-s", str(file), "-f", str(signers))
        names = found.stdout.split()
        if not found.exit.ok or not names:
            raise StoreError(f"nobody of {signers} signed the archive", where=Where(archive), remedy="do not use it")
        done = _keygen("verify", "-f", str(signers), "-I", names[0], "-n", _SPACE, "-s", str(file), text=text)
        _refuse(done, archive)
        return f"signed by {names[0]}"


def _refuse(done: Finished, archive: Path) -> None:
    if not done.exit.ok:
        raise StoreError("its signature does not fit its manifest", where=Where(archive), remedy="do not use it")
