"""Any failure of a download only makes the run use the stand-in data."""

import http.client
import io

import pytest

from bench import data_sets, downloads
from bench.errors import RunError


class CutOff(io.BytesIO):
    def read(self, *_):
        raise http.client.IncompleteRead(b"half")


@pytest.mark.parametrize("broken", [http.client.BadStatusLine("garbage"), http.client.InvalidURL("no port"), CutOff()])
def test_a_broken_proxy_or_an_answer_cut_off_is_no_more_than_that(monkeypatch, tmp_path, broken):
    def urlopen(*_, **__):
        if isinstance(broken, Exception):
            raise broken
        return broken

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    monkeypatch.setattr(data_sets, "_generate", lambda known: [b""] * 4)
    monkeypatch.setattr(data_sets, "images_digest", lambda buffers: data_sets.SETS["cifar10-stand-in"].digest)
    made = data_sets.prepare("cifar10", str(tmp_path))
    assert made.set.name == "cifar10-stand-in"
    assert made.reason.startswith("cannot download cifar10: https://")


def test_a_second_address_is_tried_when_the_first_one_is_broken(monkeypatch):
    def urlopen(address, **_):
        if "first" in address:
            raise http.client.BadStatusLine("garbage")
        return io.BytesIO(b"other")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    with pytest.raises(RunError, match="second/x has the wrong checksum"):
        downloads._fetch(("http://first/", "http://second/"), "x", "0")
