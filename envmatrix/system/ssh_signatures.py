"""Sign and verify texts with OpenSSH's ``ssh-keygen`` and the user's existing keys."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from envmatrix.errors import EnvmatrixError, InputError, StoreError, Where
from envmatrix.system.process import Finished, run

#: What a text is for; a signature made for one purpose is not valid for another.
PACK, ATLAS = "envmatrix-pack", "envmatrix-atlas"
_LIMIT_S = 60.0


def _run_keygen(*arguments: str, text: str | None = None) -> Finished:
    if not shutil.which("ssh-keygen"):
        raise EnvmatrixError("signatures need ssh-keygen (OpenSSH 8.2 or newer)", remedy="install openssh-client")
    return run(["ssh-keygen", "-Y", *arguments], limit_s=_LIMIT_S, input_text=text)


def sign_text(text: str, key: Path, purpose: str) -> bytes:
    """Return the signature of a text, made with an SSH key (its public half may name a key in an agent)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text"
        file.write_text(text, encoding="utf-8")
        finished = _run_keygen("sign", "-f", str(key), "-n", purpose, str(file))
        signature = file.with_name(f"{file.name}.sig")
        if not finished.exit.ok or not signature.exists():
            raise InputError(f"it could not be signed: {finished.last_words(1)}", remedy="check --sign KEY")
        return signature.read_bytes()


def describe_signature(text: str, signature: bytes | None, signers: Path | None, source: Path, purpose: str) -> str:
    """Verify the signature of a text and return one line about it; errors name ``source``, its file.

    ``signers`` is a file of allowed signers (ssh-keygen(1)); if none of them signed, raise a StoreError. Without it,
    the line names the key and warns that it is not trusted.
    """
    if signature is None:
        if signers:
            raise StoreError("it is not signed", where=Where(source), remedy="ask for a signed one")
        return "not signed: its checksums show damage, but not who made it"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "signature"
        file.write_bytes(signature)
        if signers is None:
            finished = _run_keygen("check-novalidate", "-n", purpose, "-s", str(file), text=text)
            _check_verified(finished, source)
            key = re.search(r"key (SHA256:\S+)", finished.stdout)
            return f"signed by key {key[1] if key else 'unknown'}, which is not verified: pass --signers FILE"
        principals = _run_keygen("find-principals", "-s", str(file), "-f", str(signers))
        names = principals.stdout.split()
        if not principals.exit.ok or not names:
            raise StoreError(
                f"it is not signed by anyone listed in {signers}", where=Where(source), remedy="do not use it"
            )
        finished = _run_keygen("verify", "-f", str(signers), "-I", names[0], "-n", purpose, "-s", str(file), text=text)
        _check_verified(finished, source)
        return f"signed by {names[0]}"


def _check_verified(finished: Finished, source: Path) -> None:
    if not finished.exit.ok:
        raise StoreError("the signature does not match the content", where=Where(source), remedy="do not use it")
