"""Files of our own machine are read with patience, and never waited for."""

import os
import time

import pytest

from triage import ownfiles


def test_a_file_is_read_whole_or_from_its_end(tmp_path):
    (tmp_path / "f").write_bytes(b"0123456789")
    assert ownfiles.read(str(tmp_path / "f")) == b"0123456789"
    assert ownfiles.read(str(tmp_path / "f"), limit=3) == b"012"
    assert ownfiles.read(str(tmp_path / "f"), limit=3, tail=True) == b"789"


def test_large_files_pass_through_the_pipe(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 3_000_000)
    assert len(ownfiles.read(str(tmp_path / "f"))) == 3_000_000


def test_an_absent_file_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        ownfiles.read(str(tmp_path / "nothing"))
    assert not ownfiles.exists(str(tmp_path / "nothing"))


def test_a_fifo_in_the_place_of_a_file_does_not_hold_us(tmp_path):
    os.mkfifo(tmp_path / "f")
    begin = time.monotonic()
    assert ownfiles.read(str(tmp_path / "f"), patience_s=1) == b""
    assert time.monotonic() - begin < 3


def test_storage_that_does_not_answer_is_given_up_after_the_deadline():
    begin = time.monotonic()
    with pytest.raises(ownfiles.TooSlow, match="did not answer within"):
        ownfiles.compute(lambda: time.sleep(60) or b"", "/dead/mount", 0.3)
    assert time.monotonic() - begin < 5


def test_a_folder_is_made_private(tmp_path):
    assert ownfiles.writable_folder(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    assert not ownfiles.writable_folder(str(tmp_path / "file" / "x"))


def test_names_of_a_folder_are_listed(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).write_text("")
    assert ownfiles.listing(str(tmp_path)) == ["a", "b"]
