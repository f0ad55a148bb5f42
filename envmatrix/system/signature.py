"""Sign and verify a manifest with OpenSSH's ``ssh-keygen`` and the user's existing keys."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from envmatrix.errors import EnvmatrixError, InputError, StoreError, Where
from envmatrix.system.process import Finished, run

_NAMESPACE = "envmatrix-pack"
_LIMIT_S = 60.0


def _run_keygen(*arguments: str, text: str | None = None) -> Finished:
    if not shutil.which("ssh-keygen"):
        raise EnvmatrixError("signatures need ssh-keygen (OpenSSH 8.2 or newer)", remedy="install openssh-client")
    return run(["ssh-keygen", "-Y", *arguments], limit_s=_LIMIT_S, input_text=text)


def sign_manifest(text: str, key: Path) -> bytes:
    """Return the signature of a manifest, made with an SSH key (its public half may name a key in an agent)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "manifest.json"
        file.write_text(text, encoding="utf-8")
        finished = _run_keygen("sign", "-f", str(key), "-n", _NAMESPACE, str(file))
        signature = file.with_name(f"{file.name}.sig")
        if not finished.exit.ok or not signature.exists():
            raise InputError(f"the manifest could not be signed: {finished.last_words(1)}", remedy="check --sign KEY")
        return signature.read_bytes()


def verify_signature(text: str, signature: bytes | None, signers: Path | None, archive: Path) -> str:
    """Verify the signature of a manifest and return one line about it.

    ``signers`` is a file of allowed signers (ssh-keygen(1)); if none of them signed, raise a StoreError. Without it,
    the line names the key and warns that it is not trusted.
    """
    if signature is None:
        if signers:
            raise StoreError("the archive is not signed", where=Where(archive), remedy="ask for a signed archive")
        return "not signed: its checksums show damage, but not who made it"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "signature"
        file.write_bytes(signature)
        if signers is None:
            finished = _run_keygen("check-novalidate", "-n", _NAMESPACE, "-s", str(file), text=text)
            _check_verified(finished, archive)
            key = re.search(r"key (SHA256:\S+)", finished.stdout)
            return f"signed by key {key[1] if key else 'unknown'}, which is not verified: pass --signers FILE"
        principals = _run_keygen("find-principals", "-s", str(file), "-f", str(signers))
        names = principals.stdout.split()
        if not principals.exit.ok or not names:
            raise StoreError(
                f"the archive is not signed by anyone listed in {signers}", where=Where(archive), remedy="do not use it"
            )
        finished = _run_keygen(
            "verify", "-f", str(signers), "-I", names[0], "-n", _NAMESPACE, "-s", str(file), text=text
        )
        _check_verified(finished, archive)
        return f"signed by {names[0]}"


def _check_verified(finished: Finished, archive: Path) -> None:
    if not finished.exit.ok:
        raise StoreError("the signature does not match the manifest", where=Where(archive), remedy="do not use it")
