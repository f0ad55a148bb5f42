"""Where the user's own program finds its files, and where what it writes goes."""

import pytest

from envmatrix.own_program import link_files, metric_file


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (None, ""),
        ({"wall": True}, ""),
        ({"json_file": "out.json:speed"}, "out.json"),
        ({"json_file": "runs/out.json:speed"}, ""),
        ({"json_file": "..:speed"}, ""),
    ],
)
def test_the_metrics_file_is_named_where_it_lies_beside_the_program(metric, name):
    assert metric_file({"metric": metric}) == name


def test_an_old_metric_or_record_is_neither_read_nor_overwritten(tmp_path):
    files, work = tmp_path / "files", tmp_path / "work"
    files.mkdir()
    work.mkdir()
    for name in ("train.py", "out.json", "record.json"):
        (files / name).write_text("old")
    link_files(work, files, str(files), "out.json")
    assert [path.name for path in work.iterdir()] == ["train.py"]
    (work / "out.json").write_text("new")
    assert (files / "out.json").read_text() == "old"
