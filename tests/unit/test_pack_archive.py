"""A pack is opened only if every byte matches its manifest; nothing is ever written outside its folder."""

import gzip
import io
import json
import os
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envmatrix.errors import InputError, StoreError
from envmatrix.results import RunFolder
from envmatrix.runner.reproduction.pack_archive import (
    Manifest,
    is_safe,
    make_entry,
    read_manifest,
    unpack,
    write_archive,
)
from envmatrix.runner.reproduction.pack_rerun import packed_design
from envmatrix.system.ssh_signatures import PACK, describe_signature, sign_text
from tests.synthetic import MATRIX_TEXT, make_plan, make_run

FILES = {"run/run.json": b'{"schema": 1}', "bench/a.py": b"print(1)\n" * 3000, "matrix.yaml": "é".encode()}


def manifest(files):
    return Manifest("r", "2026-01-01", "0.1", {name: make_entry(data) for name, data in files.items()})


def packed(path, files=None, signature=None):
    files = FILES if files is None else files
    write_archive(path, manifest(files), files, signature)
    return path


def forged(path, members, text=None):
    """Write a tar of (name, data, type) after a manifest that promises FILES."""
    with tarfile.open(path, "w:gz") as tar:
        body = (manifest(FILES).text() if text is None else text).encode()
        for name, data, kind in [("manifest.json", body, tarfile.REGTYPE), *members]:
            information = tarfile.TarInfo(name)
            information.size, information.type, information.linkname = len(data), kind, "/etc/passwd"
            tar.addfile(information, io.BytesIO(data))
    return path


def good_members():
    return [(name, data, tarfile.REGTYPE) for name, data in FILES.items()]


def test_what_is_packed_is_unpacked_and_the_same_contents_give_the_same_bytes(tmp_path):
    archive = packed(tmp_path / "a.tar.gz")
    assert archive.read_bytes() == packed(tmp_path / "b.tar.gz").read_bytes()
    found, text, signature = unpack(archive, tmp_path / "out")
    assert signature is None
    assert found == manifest(FILES)
    assert text == found.text()
    assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == FILES


def test_a_pack_is_written_to_a_pipe_and_its_digest_is_of_what_was_written(tmp_path):
    pipe, archive = tmp_path / "pipe", packed(tmp_path / "a.tar.gz")
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as beside:
        read = beside.submit(pipe.read_bytes)
        written = write_archive(pipe, manifest(FILES), FILES, None)
    assert read.result() == archive.read_bytes()
    assert written == make_entry(archive)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_changed_byte_is_ever_accepted(tmp_path, data):
    raw = bytearray(gzip.decompress(packed(tmp_path / "a.tar.gz").read_bytes()))
    files = FILES
    name = data.draw(st.sampled_from(sorted(files)))
    at = raw.index(files[name]) + data.draw(st.integers(0, len(files[name]) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(bytes(raw)))
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    with pytest.raises(StoreError, match=name):
        unpack(tmp_path / "b.tar.gz", tmp_path / "out")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([*good_members(), ("extra", b"x", tarfile.REGTYPE)], "extra is not in its manifest"),
        ([*good_members(), good_members()[0]], "run/run.json is not in its manifest, or occurs twice"),
        (good_members()[1:], "run/run.json is missing"),
        ([(good_members()[0][0], b"", tarfile.SYMTYPE), *good_members()[1:]], "not a plain file"),
        ([(good_members()[0][0], b"", tarfile.LNKTYPE), *good_members()[1:]], "not a plain file"),
        ([(good_members()[0][0], b"", tarfile.CHRTYPE), *good_members()[1:]], "not a plain file"),
        ([("../evil", b"x", tarfile.REGTYPE), *good_members()], "not a plain file"),
        ([("/tmp/evil", b"x", tarfile.REGTYPE), *good_members()], "not a plain file"),
        ([("run/run.json", b'{"schema": 1} ', tarfile.REGTYPE)], "run/run.json is longer"),
        ([("run/run.json", b"", tarfile.REGTYPE)], "run/run.json does not match its manifest"),
    ],
)
def test_an_archive_that_was_tampered_with_is_refused_and_names_the_file(tmp_path, members, words):
    with pytest.raises(StoreError, match=words):
        unpack(forged(tmp_path / "a.tar.gz", members), tmp_path / "out")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("name", ["../x", "/x", "a/../x", "a//x", "./x", "", "a\\x", "a\nx", ".."])
def test_a_manifest_with_a_path_that_leads_outside_is_refused(tmp_path, name):
    assert not is_safe(name)
    body = {"schema": 1, "run": "r", "created": "", "files": {name: {"sha256": "0", "bytes": 1}}}
    with pytest.raises(StoreError, match="outside"):
        read_manifest(json.dumps(body), tmp_path)


@pytest.mark.parametrize("cut", [0, 1, 20, 200, -300])
def test_a_cut_off_archive_is_refused(tmp_path, cut):
    whole = packed(tmp_path / "a.tar.gz").read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(whole[:cut])
    with pytest.raises(StoreError):
        unpack(tmp_path / "b.tar.gz", tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "no schema"), ("{", "not valid JSON"), ('{"schema": 99}', "newer than this envmatrix"),
        ('{"schema": 1}', "not a manifest"),
        ('{"schema": 1, "run": "r", "created": "", "files": []}', "not a manifest"),
        ('{"schema": true, "files": {}}', "no schema|not a manifest"),
        ('{"schema": 1, "run": "", "created": "", "files": {"a": {"sha256": "", "bytes": Infinity}}}',
         "not a manifest"),
        ('{"schema": 1, "run": "", "created": "", "files": {}, "images": {"i@apptainer": {"file": "../i.sif"}}}',
         "image '../i.sif' is not among its files"),
    ],
)  # fmt: skip
def test_a_manifest_of_another_kind_or_a_newer_schema_is_told_apart(tmp_path, text, words):
    with pytest.raises(StoreError, match=words):
        unpack(forged(tmp_path / "a.tar.gz", [], text), tmp_path / "out")


def rewritten(path, design):
    """Return a run whose run.json was altered."""
    folder = RunFolder(path / "run")
    folder.create(make_run(make_plan(())), MATRIX_TEXT)
    folder.run_file.write_text(json.dumps({**json.loads(folder.run_file.read_text()), "design": design}))
    return folder


@pytest.mark.parametrize(
    ("design", "words"),
    [
        ({"name": "../../evil", "workloads": ["w"]}, "is not a valid name of a design"),
        ({"name": "d", "workloads": []}, "design.workloads: "),
        ({"workloads": ["w"]}, "design.name: "),
    ],
)
def test_a_packed_design_that_envmatrix_did_not_write_is_refused(tmp_path, design, words):
    with pytest.raises(StoreError, match=words):
        packed_design(rewritten(tmp_path, design).load(), tmp_path / "run.json")


def test_something_that_is_no_archive_is_told(tmp_path):
    (tmp_path / "a").write_text("hello")
    with pytest.raises(StoreError, match="the archive is incomplete"):
        unpack(tmp_path / "a", tmp_path / "out")
    with tarfile.open(tmp_path / "b", "w:gz"):
        pass
    with pytest.raises(StoreError, match="not a pack of envmatrix"):
        unpack(tmp_path / "b", tmp_path / "out")


def test_a_signature_says_who_made_the_archive_and_a_stranger_is_refused(keys):
    text = manifest(FILES).text()
    mine, other = sign_text(text, keys / "mine", PACK), sign_text(text, keys / "other", PACK)
    assert describe_signature(text, mine, keys / "signers", keys, PACK) == "signed by me@example.org"
    assert "which is not verified: pass --signers FILE" in describe_signature(text, other, None, keys, PACK)
    assert describe_signature(text, None, None, keys, PACK).startswith("not signed")
    with pytest.raises(StoreError, match="not signed by anyone listed in"):
        describe_signature(text, other, keys / "signers", keys, PACK)
    with pytest.raises(StoreError, match="not signed"):
        describe_signature(text, None, keys / "signers", keys, PACK)
    for signers in (keys / "signers", None):
        with pytest.raises(StoreError, match="does not match"):
            describe_signature(text + " ", mine, signers, keys, PACK)
    with pytest.raises(InputError, match="could not be signed"):
        sign_text(text, keys / "nosuch", PACK)
