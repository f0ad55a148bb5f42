"""The digests that prove that two environments ran the same code, options and data."""

import hashlib
import random

from bench import code_digest, data_sets, stand_in_data, user_program


def test_the_digest_covers_names_and_bytes_and_ignores_compiled_files(tmp_path):
    (tmp_path / "a.py").write_bytes(b"one")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.py").write_bytes(b"two")
    before = code_digest.folder_digest(str(tmp_path))
    expected = hashlib.sha256(b"a.py\x003\x00one" + b"sub/b.py\x003\x00two").hexdigest()
    assert before == "sha256:" + expected
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"x")
    assert code_digest.folder_digest(str(tmp_path)) == before
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    assert code_digest.folder_digest(str(tmp_path)) != before


def test_moving_a_byte_from_one_file_to_the_next_changes_the_digest(tmp_path):
    for folder, first, second in (("x", b"ab", b"c"), ("y", b"a", b"bc")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1").write_bytes(first)
        (tmp_path / folder / "2").write_bytes(second)
    assert code_digest.folder_digest(str(tmp_path / "x")) != code_digest.folder_digest(str(tmp_path / "y"))


def test_the_options_digest_does_not_depend_on_their_order():
    assert code_digest.options_digest({"a": 1, "b": "é"}) == code_digest.options_digest({"b": "é", "a": 1})
    assert code_digest.options_digest({"a": 1}) != code_digest.options_digest({"a": 2})


def test_the_stand_in_is_made_to_its_published_digest_and_is_found_again(tmp_path):
    made = data_sets.prepare("fashion-mnist", str(tmp_path), offline=True)
    assert made.set.name == "fashion-mnist-stand-in"
    assert made.set.stand_in
    assert made.set.digest == data_sets.SETS["fashion-mnist-stand-in"].digest
    assert made.reason == "downloads are off"
    assert data_sets.find_set_or_stand_in("fashion-mnist", str(tmp_path)).path == made.path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fashion-mnist-stand-in"]


def test_a_damaged_data_folder_is_made_again(tmp_path):
    made = data_sets.prepare("fashion-mnist-stand-in", str(tmp_path))
    part = tmp_path / "fashion-mnist-stand-in" / "test-labels.bin"
    whole = part.read_bytes()
    part.write_bytes(bytes(len(whole)))
    again = data_sets.prepare("fashion-mnist-stand-in", str(tmp_path))
    assert again == made
    assert part.read_bytes() == whole


def test_stand_in_pixels_never_overflow_and_every_class_is_there():
    images, labels, _, _ = stand_in_data.generate("any", (3, 32, 32), 10, 400, 1)
    assert len(images) == 400 * 3 * 32 * 32
    assert set(labels) == set(range(10))
    assert max(images) < 256
    mean = [sum(images[i * 3072 : (i + 1) * 3072]) / 3072 for i in random.Random(1).sample(range(400), 50)]
    # A carry from one byte into the next would shift the mean far above the noise (31) and the strokes.
    assert all(25 < value < 90 for value in mean)


def test_the_environments_own_python_is_not_other_work(monkeypatch):
    def digest_of(python, program):
        monkeypatch.setattr("sys.executable", python)
        return user_program._digest({"command": [program, "train.py"], "metric": {}})

    one = digest_of("/venv/a/bin/python", "/venv/a/bin/python")
    assert one == digest_of("/opt/b/bin/python3", "/opt/b/bin/python3")
    assert one != digest_of("/opt/b/bin/python3", "/usr/bin/python3")
