"""report.html in a real, headless Chromium. The screenshots are left in $SCREENSHOTS when that is set."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from pathlib import Path

import pytest

from envmatrix.process import run
from envmatrix.report.write import write_reports
from tests.synthetic import Machine, make_plan, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium: apt-get install --no-install-recommends chromium"),
]
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
FRAME = """<body><iframe src="{page}" style="width:{width}px;height:900px;border:0"></iframe><script>
onload = () => {{ const d = document.querySelector('iframe').contentDocument;
  const regions = [...d.querySelectorAll('.scroll')];
  document.body.dataset.found = JSON.stringify([d.documentElement.scrollWidth, regions.length,
    regions.every(r => r.tabIndex === 0 && r.getAttribute('aria-label')),
    [...d.querySelectorAll('svg[role=img]')].every(s => s.querySelector('title').textContent.length > 10)
    ]); }};
</script></body>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    speeds = {"tcmalloc": 1.28, "mimalloc": 1.26, "intel-omp": 0.96, "jemalloc": 0.88, "bf16": 1.5}
    machine = Machine(speeds, noise=0.04, drift=0.01, loss={"bf16": 0.8}, outcome={"broken": "invalid"})
    path = tmp_path_factory.mktemp("run") / "shown"
    write_reports(write_run(path, make_plan((*speeds, "broken")), machine, 10))
    return path / "report.html"


def chromium(tmp_path: Path, *arguments: str) -> str:
    argv = [CHROMIUM, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    finished = run(argv, limit_s=110)
    assert finished.exit.ok, finished.last_words()
    return finished.stdout


def screenshot(page: Path, tmp_path: Path, name: str, size: str, *arguments: str) -> bytes:
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    chromium(tmp_path, f"--window-size={size}", f"--screenshot={folder / name}", *arguments, page.as_uri())
    return (folder / name).read_bytes()


def first_pixel(png: bytes) -> tuple[int, ...]:
    """Return the first pixel: whatever its filter, it is stored as it is."""
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        data += png[at + 8 : at + 8 + length] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += length + 12
    return tuple(zlib.decompress(data)[1:4])


def test_the_page_is_light_or_dark_as_the_reader_has_chosen(page, tmp_path):
    light = screenshot(page, tmp_path, "light.png", "1100,2600")
    dark = screenshot(page, tmp_path, "dark.png", "1100,2600", "--blink-settings=preferredColorScheme=0")
    assert first_pixel(light) == (255, 255, 255)
    assert max(first_pixel(dark)) < 40


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_never_scrolls_sideways_and_can_be_used_by_keyboard_and_ear(page, tmp_path, width):
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(page=page.as_uri(), width=width))
    arguments = ("--allow-file-access-from-files", "--virtual-time-budget=4000", "--dump-dom")
    found = chromium(tmp_path, *arguments, frame.as_uri()).partition('data-found="[')[2].partition("]")[0]
    scrolled, regions, reachable, named = found.split(",")
    assert int(scrolled) <= width
    assert (int(regions) >= 4, reachable, named) == (True, "true", "true")


def test_the_page_prints(page, tmp_path):
    out = tmp_path / "report.pdf"
    chromium(tmp_path, f"--print-to-pdf={out}", "--no-pdf-header-footer", page.as_uri())
    assert out.read_bytes().startswith(b"%PDF-")
    screenshot(page, tmp_path, "narrow.png", "500,2600")
