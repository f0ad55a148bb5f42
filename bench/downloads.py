"""Downloads of the real data sets, verified against their published checksums."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import tarfile
import urllib.request
from collections.abc import Sequence

from bench.errors import RunError

_FASHION_URLS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
# https://github.com/zalandoresearch/fashion-mnist#get-the-data publishes MD5 sums; these are SHA-256 of the same files.
_FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
# https://www.cs.toronto.edu/~kriz/cifar.html, the binary version (no pickle); the page publishes its MD5.
_CIFAR_URLS = ("https://www.cs.toronto.edu/~kriz/",)
_CIFAR_FILE, _CIFAR_SHA256 = (
    "cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)  # fmt: skip
_CIFAR_ROW_BYTES = 1 + 3 * 32 * 32


def fetch(name: str, sizes: Sequence[int]) -> list[bytes]:
    """Return [train images, train labels, test images, test labels] as raw bytes of the given ``sizes``.

    Raises OSError or RunError if the download fails, and RunError if the content is not what was published.
    """
    parts = {"fashion-mnist": _fashion_mnist, "cifar10": _cifar10}[name]()
    for part, size in zip(parts, sizes):
        if len(part) != size:
            raise RunError(f"{name}: a part holds {len(part)} bytes, not {size}")
    return parts


def _fashion_mnist() -> list[bytes]:
    files = [gzip.decompress(_fetch(_FASHION_URLS, *file_and_sum)) for file_and_sum in _FASHION_FILES.items()]
    # IDX headers: 16 bytes for three dimensions, 8 for one.
    return [content[16 if number % 2 == 0 else 8 :] for number, content in enumerate(files)]


def _cifar10() -> list[bytes]:
    with tarfile.open(fileobj=io.BytesIO(_fetch(_CIFAR_URLS, _CIFAR_FILE, _CIFAR_SHA256))) as archive:

        def rows(*names: str) -> bytes:
            return b"".join(_member(archive, f"cifar-10-batches-bin/{name}.bin") for name in names)

        return _split(rows(*(f"data_batch_{number}" for number in range(1, 6)))) + _split(rows("test_batch"))


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise RunError(f"cifar10: {name} is no file")
    return file.read()


def _split(rows: bytes) -> list[bytes]:
    """Split CIFAR's rows (a label byte, then an image) into [images, labels]."""
    starts = range(0, len(rows), _CIFAR_ROW_BYTES)
    images = b"".join(rows[start + 1 : start + _CIFAR_ROW_BYTES] for start in starts)
    return [images, rows[::_CIFAR_ROW_BYTES]]


def _fetch(bases: Sequence[str], name: str, sha256: str) -> bytes:
    problem: OSError | RunError = RunError(f"nobody offers {name}")
    for base in bases:
        try:
            with urllib.request.urlopen(base + name, timeout=10) as answer:
                content = answer.read(1 << 28)
        except OSError as error:
            problem = error
            continue
        except http.client.HTTPException as error:  # a broken proxy, or a truncated response
            problem = RunError(f"{base}{name}: {error!r}")
            continue
        if hashlib.sha256(content).hexdigest() == sha256:
            return content
        problem = RunError(f"{base}{name} has the wrong checksum")
    raise problem
