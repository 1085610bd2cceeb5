"""Files are whole or absent, and only one of several creators succeeds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from evaluation.run_directory.atomic import create_exclusive, write_atomic


def test_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "new" / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_exactly_one_of_many_creators_succeeds(tmp_path):
    path = tmp_path / "manifest.json"
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: create_exclusive(path, b"%d" % n), range(32)))
    assert won.count(True) == 1
    assert path.read_bytes() == b"%d" % won.index(True)
    assert list(tmp_path.iterdir()) == [path]
