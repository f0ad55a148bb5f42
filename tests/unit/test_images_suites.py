from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from envmatrix.build.debian.minimal_base import options_for_old_lists


@pytest.mark.skipif(shutil.which("apt-config") is None, reason="apt is not installed")
@pytest.mark.parametrize(("said", "count"), [("false", 2), ("0", 2), ("true", 0)])
def test_a_base_may_come_from_old_lists_only_where_this_machines_apt_takes_them(
    said: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "apt.conf"
    config.write_text(
        f'Dir::Etc::Parts "/dev/null";\nDir::Etc::Main "/dev/null";\nAcquire::Check-Valid-Until "{said}";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(config))
    options = options_for_old_lists()
    assert len(options) == count
    assert all("Check-Valid-Until" in word or word.startswith("--customize-hook=rm ") for word in options)
