"""Every page that envmatrix writes, in a real headless Chromium; screenshots are kept in $SCREENSHOTS, if set."""

from __future__ import annotations

import html
import json
import os
import shutil
import struct
import sys
import zlib
from pathlib import Path

import pytest

from envmatrix.api.tuning import search
from envmatrix.report.formats.atlas_page import to_html as atlas_html
from envmatrix.report.formats.history_page import to_html as history_html
from envmatrix.report.write import write_reports
from envmatrix.stats.history import read_history
from envmatrix.stats.meta_analysis.atlas import read_atlas
from envmatrix.system.process import run
from tests.synthetic import Machine, make_plan, write_run
from tests.unit import test_tune_loop as tuned
from tests.unit.test_atlas import entry

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium: apt-get install --no-install-recommends chromium"),
]
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--allow-file-access-from-files",
)  # fmt: skip
#: Axe-core is not a dependency: `npm install axe-core`, then AXE=node_modules/axe-core/axe.min.js.
AXE = os.environ.get("AXE")
DARK = "--blink-settings=preferredColorScheme=0"
#: All pages side by side, each as wide as a screen, with the problems that a script finds in each.
SHEET = """<!doctype html><body style="margin:0;display:flex;gap:8px;background:#888">{frames}<script>
const found = [];
const answer = () => {{ document.body.dataset.found = JSON.stringify(found); }};
onload = async () => {{ for (const frame of document.querySelectorAll('iframe')) {{
  const d = frame.contentDocument, view = frame.contentWindow;
  const regions = [...d.querySelectorAll('.scroll')];
  const seen = name => {{ const e = d.querySelector(name), b = e && e.getBoundingClientRect();
    return !!b && b.width > 0 && b.left >= 0 && b.right <= view.innerWidth; }};
  const one = {{ wide: d.documentElement.scrollWidth, regions: regions.length,
    reachable: regions.every(r => r.tabIndex === 0 && r.getAttribute('aria-label')),
    named: [...d.querySelectorAll('svg[role=img]')].every(s => s.querySelector('title').textContent.length > 10),
    winner: seen('td.verdict.faster'),
    figures: [...d.querySelectorAll('table.cards td.n')].map(e => e.getBoundingClientRect())
      .every(b => b.left >= 0 && b.right <= view.innerWidth),
    cards: d.querySelectorAll('table.cards').length,
    dot: [...d.querySelectorAll('svg .faster .mark')].some(e => {{ const b = e.getBoundingClientRect();
      return b.width > 0 && b.right <= view.innerWidth; }}),
    whole: [...d.querySelectorAll('svg[role=img], svg[role=img] text')].map(e => e.getBoundingClientRect())
      .every(b => b.left >= 0 && b.right <= view.innerWidth),
    ends: [...d.querySelectorAll('a[href^="#"]')].every(a => d.getElementById(a.hash.slice(1))) }};
  {axe}
  found.push(one); }} answer(); }};
</script></body>"""
RUN_AXE = """await new Promise(done => {{ const s = d.createElement('script'); s.src = '{axe}'; s.onload = done;
    d.head.append(s); }});
  const told = await view.axe.run(d);
  one.axe = told.violations.map(v => v.id + ': ' + v.nodes.map(n => n.target.join(' ')).slice(0, 3).join(' | '));"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    speeds = {"tcmalloc": 1.28, "mimalloc": 1.26, "intel-omp": 0.96, "jemalloc": 0.88, "bf16": 1.5}
    machine = Machine(speeds, noise=0.04, drift=0.01, loss={"bf16": 0.8}, outcome={"broken": "invalid"})
    path = tmp_path_factory.mktemp("pages")
    write_reports(write_run(path / "shown", make_plan((*speeds, "broken")), machine, 10))
    for day in range(1, 13):
        day_by_day = Machine({"tcmalloc": 1.2 if day < 7 else 1.0}, noise=0.02)
        created = f"2026-01-{day:02d}T00:00:00Z"
        write_reports(
            write_run(path / "days" / f"{day}", make_plan(("tcmalloc",)), day_by_day, 6, day, created=created)
        )
    (path / "history.html").write_text(history_html(read_history(path / "days"), "days"))
    long = "an-environment-with-a-name-as-long-as-real-ones-are"
    machines = [entry(number, environment=long, workload="cnn-" * 9) for number in range(7)]
    (path / "atlas.html").write_text(atlas_html(read_atlas(machines)).replace("<details>", "<details open>"))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(path)
        (path / "matrix.yaml").write_text(tuned.MATRIX.format(python=sys.executable))
        tuned.Machine(patched, {"large": 0.2, "there": 0.1, "broken": None})
        search.finish_search(tuned.begun(), tuned.watch)
    tune = path / "results" / "mine" / "report.html"
    long = tune.read_text().replace("=large", "=as-large-as-the-names-of-real-levels-are")  # long names must fit
    assert long.count("real-levels") > 1
    tune.write_text(long)
    return {
        "report": path / "shown" / "report.html", "history": path / "history.html",
        "tune": tune, "atlas": path / "atlas.html",
    }  # fmt: skip


def chromium(tmp_path: Path, *arguments: str) -> str:
    argv = [CHROMIUM, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    finished = run(argv, limit_s=110)
    assert finished.exit.ok, finished.last_words()
    return finished.stdout


def sheet(tmp_path: Path, pages: dict[str, Path], width: int, axe: str = "") -> Path:
    frames = "".join(
        f'<iframe title="{name}" src="{page.as_uri()}" '
        f'style="flex:none;width:{width}px;height:5000px;border:0"></iframe>'
        for name, page in pages.items()
    )
    file = tmp_path / "sheet.html"
    file.write_text(SHEET.format(frames=frames, axe=axe))
    return file


def found(tmp_path: Path, pages: dict[str, Path], width: int, axe: str = "", *more: str) -> dict[str, dict]:
    arguments = (*more, "--virtual-time-budget=20000", "--dump-dom", sheet(tmp_path, pages, width, axe).as_uri())
    told = chromium(tmp_path, *arguments).partition('data-found="')[2].partition('"')[0]
    return dict(zip(pages, json.loads(html.unescape(told)), strict=True))


def pixel(png: bytes) -> tuple[int, ...]:
    """Return the first pixel of a PNG; a filter does not change it."""
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        data += png[at + 8 : at + 8 + length] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += length + 12
    return tuple(zlib.decompress(data)[1:4])


@pytest.mark.parametrize("width", [400, 1200])
def test_every_page_is_light_or_dark_as_the_reader_has_chosen(pages, tmp_path, width):
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    shown = {}
    for scheme, more in {"light": (), "dark": (DARK,)}.items():
        file = folder / f"{width}-{scheme}.png"
        size = f"--window-size={(width + 8) * len(pages)},5000"
        chromium(tmp_path, size, f"--screenshot={file}", *more, sheet(tmp_path, pages, width).as_uri())
        shown[scheme] = pixel(file.read_bytes())
    assert shown["light"] == (255, 255, 255)
    assert max(shown["dark"]) < 40


@pytest.mark.parametrize("width", [400, 768, 1200])
def test_no_page_scrolls_sideways_and_all_can_be_used_by_keyboard_and_ear(pages, tmp_path, width):
    for name, seen in found(tmp_path, pages, width).items():
        assert seen["wide"] <= width, name
        assert (seen["reachable"], seen["named"], seen["ends"]) == (True, True, True), name
        assert seen["regions"] >= 1, name
        assert seen["whole"], f"every figure of {name} is in sight, with all of its text"
        if width == 400:
            assert seen["figures"], f"every figure of a table of {name} is in sight"
            assert seen["cards"] >= (2 if name == "report" else 1)
        if name == "report":
            assert (seen["winner"], seen["dot"]) == (True, True), "the answer is in sight"


@pytest.mark.skipif(not AXE, reason="AXE names no axe.min.js: npm install axe-core")
@pytest.mark.parametrize("scheme", [(), (DARK,)], ids=["light", "dark"])
def test_axe_finds_nothing_to_mend_on_any_page(pages, tmp_path, scheme):
    script = RUN_AXE.format(axe=Path(AXE or "").resolve().as_uri())
    for width in (400, 1200):
        told = {name: seen["axe"] for name, seen in found(tmp_path, pages, width, script, *scheme).items()}
        assert told == {name: [] for name in pages}


def test_the_report_prints(pages, tmp_path):
    out = tmp_path / "report.pdf"
    chromium(tmp_path, f"--print-to-pdf={out}", "--no-pdf-header-footer", pages["report"].as_uri())
    assert out.read_bytes().startswith(b"%PDF-")
