"""Signed files of an atlas: who signed is told for each, and a wrong signature leaves a file out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from envmatrix.__main__ import main
from envmatrix.api.atlas import add_to_atlas, read_atlas_folder
from envmatrix.results.atlas_entries import digest
from envmatrix.system.ssh_signatures import PACK, sign_text
from tests.synthetic import HOST
from tests.unit.test_atlas import run_on


@pytest.fixture
def signed_atlas(tmp_path, keys):
    """Return an atlas with a file by the trusted signer, one by a stranger and one without a signature."""
    hosts = [replace(HOST, cpu_model=name) for name in ("CPU A", "CPU B", "CPU C")]
    runs = [run_on(tmp_path, f"r{n}", host, created=f"2026-01-0{n + 1}") for n, host in enumerate(hosts)]
    folder = tmp_path / "atlas"
    for path, key in zip(runs, (keys / "mine", keys / "other", None), strict=True):
        add_to_atlas([path], folder, key=key)
    return folder


def file_of(folder, model):
    return next(file for file in folder.glob("run-*.json") if f'"{model}"' in file.read_text())


def shown(capsys, folder, *more):
    assert main(["atlas", "show", "--from", str(folder), *more]) == 0
    return capsys.readouterr().out


def test_each_file_is_shown_with_its_signer_and_that_of_a_stranger_is_left_out(signed_atlas, keys, capsys):
    mine, other, none = (file_of(signed_atlas, f"CPU {letter}") for letter in "ABC")
    assert shown(capsys, signed_atlas).startswith("3 runs of 3 machines"), "nobody asked who signed"
    lines = shown(capsys, signed_atlas, "--signers", str(keys / "signers")).splitlines()
    assert lines[0] == "2 runs of 2 machines"
    assert f"signed by me@example.org: {mine.name}" in lines
    assert f"not signed: {none.name}" in lines
    (warning,) = [line for line in lines if line.startswith("warning: left out: ")]
    assert other.name in warning
    assert "not signed by anyone listed in" in warning
    assert main(["atlas", "show", "--from", str(signed_atlas), "--signers", str(keys / "signers"), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["signatures"] == {mine.name: "signed by me@example.org", none.name: "not signed"}


def test_advice_leaves_out_the_file_of_a_stranger_too(signed_atlas, keys, capsys):
    words = ["atlas", "advise", "--from", str(signed_atlas)]
    for more, left_out in (([], False), (["--signers", str(keys / "signers")], True)):
        assert main([*words, *more]) == 0
        warning = f"warning: left out: {file_of(signed_atlas, 'CPU B')}"
        assert (warning in capsys.readouterr().out) is left_out


def another_text(file):
    """Replace the content by a valid entry, under its own name, with the signature of the former one."""
    text = file.read_text().replace('"faster"', '"slower"')
    changed = file.with_name(f"run-{digest(text)}.json")
    changed.write_text(text)
    file.with_name(f"{file.name}.sig").rename(f"{changed}.sig")
    file.unlink()


def cut_signature(file):
    file.with_name(f"{file.name}.sig").write_text("-----BEGIN SSH SIGNATURE-----\n")


def of_a_pack(file):
    signature = sign_text(file.read_text(), file.parents[1] / "mine", PACK)
    file.with_name(f"{file.name}.sig").write_bytes(signature)


@pytest.mark.parametrize("change", [another_text, cut_signature, of_a_pack])
def test_a_file_whose_signature_is_wrong_is_left_out_with_one_line(signed_atlas, keys, capsys, change):
    change(file_of(signed_atlas, "CPU A"))
    said = shown(capsys, signed_atlas, "--signers", str(keys / "signers"))
    assert said.startswith("1 run of 1 machine")
    assert said.count("warning: left out: ") == 2, "this one and the stranger's"
    assert "signed by me@example.org" not in said


def test_a_run_that_is_there_unsigned_can_be_signed_later_and_git_may_change_its_ends(tmp_path, keys, capsys):
    path, folder = run_on(tmp_path, "one"), tmp_path / "atlas"
    ((file, _),) = add_to_atlas([path], folder)
    assert add_to_atlas([path], folder, key=keys / "mine") == [(file, False)]
    for one in folder.iterdir():
        one.write_bytes(one.read_bytes().replace(b"\n", b"\r\n"))
    before = {one: one.read_bytes() for one in folder.iterdir()}
    assert f"signed by me@example.org: {file.name}\n" in shown(capsys, folder, "--signers", str(keys / "signers"))
    argv = ["atlas", "add", str(path), "--to", str(folder), "--sign", str(keys / "other")]
    assert main(argv) == 0
    assert capsys.readouterr().out == f"{file}: already there, signed\n"
    assert {one: one.read_bytes() for one in folder.iterdir()} == before, "nothing is overwritten"
    assert len(before) == 2


def test_an_unsigned_file_does_not_displace_the_signed_one_of_its_run(tmp_path, keys):
    folder = tmp_path / "atlas"
    for blocks, key in ((8, keys / "mine"), (12, None)):
        add_to_atlas([run_on(tmp_path / str(blocks), "one", blocks=blocks)], folder, key=key)
    blocks = [
        read_atlas_folder(folder, signers=signers).rows[0].machines[0].effect.blocks
        for signers in (None, keys / "signers")
    ]
    assert blocks == [12, 8]


def test_a_key_that_cannot_sign_adds_nothing(tmp_path, keys, capsys):
    path = run_on(tmp_path, "one")
    assert main(["atlas", "add", str(path), "--to", str(tmp_path / "atlas"), "--sign", str(keys / "nosuch")]) == 2
    assert "could not be signed" in capsys.readouterr().err
    assert not (tmp_path / "atlas").exists()
