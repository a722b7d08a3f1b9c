"""What grew in a folder: real files, real links, a hundred thousand names, a file system that never answers."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _folders as folders
import pytest


def walk(top: Path, before: Any = None, seconds: float = 20.0, **more: Any) -> Any:
    return folders.walk(str(top), time.monotonic() + seconds, before, **more)


def grew(top: Path, change: Any, **more: Any) -> dict[str, Any]:
    before = walk(top, **more)
    change()
    return folders.growth(before, walk(top, before))


def write(path: Path, text: str = "x" * 100, at: float | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if at is not None:
        os.utime(path, (at, at))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    top = tmp_path / "cache"
    write(top / "ab" / "old.cubin", "o" * 50, at=1790000000.0)
    write(top / "index", "i" * 10, at=1790000001.5)
    return top


def test_new_files_and_longer_ones_are_counted_with_their_bytes(cache) -> None:
    def change() -> None:
        write(cache / "cd" / "deep" / "new.cubin", "n" * 30, at=1790000500.25)
        write(cache / "index", "i" * 14, at=1790000400.0)

    found = grew(cache, change)
    assert found == {
        "files_new": 2, "bytes_grown": 34, "newest_at": 1790000500.25, "truncated": False, "why": "",
    }  # fmt: skip


def test_a_cache_in_which_nothing_happens_has_grown_by_nothing_and_tells_its_newest_file(cache) -> None:
    found = grew(cache, lambda: None)
    assert (found["files_new"], found["bytes_grown"], found["newest_at"]) == (0, 0, 1790000001.5)


def test_a_lock_that_somebody_waits_for_is_no_growth(cache) -> None:
    # filelock opens and truncates its file in each of its attempts, for as long as it waits.
    write(cache / "locks" / "k.lock", "")

    def change() -> None:
        write(cache / "locks" / "k.lock", "")
        write(cache / "locks" / "another.lock", "4711")
        write(cache / "ab" / "lock", "1")
        write(cache / "ab" / "empty", "")

    found = grew(cache, change)
    assert (found["files_new"], found["bytes_grown"], found["newest_at"]) == (0, 0, 1790000001.5)


def test_a_new_date_alone_is_no_growth(cache) -> None:
    found = grew(cache, lambda: os.utime(cache / "index", (1790009999, 1790009999)))
    assert (found["files_new"], found["bytes_grown"]) == (0, 0)


def test_a_file_that_is_moved_into_its_place_is_new(cache) -> None:
    # Triton writes below a temporary name and renames.
    def change() -> None:
        write(cache / "tmp.pid_7" / "kernel.cubin")
        (cache / "ef").mkdir()
        os.replace(cache / "tmp.pid_7" / "kernel.cubin", cache / "ef" / "kernel.cubin")
        (cache / "tmp.pid_7").rmdir()

    assert grew(cache, change)["files_new"] == 1


def test_what_is_deleted_or_becomes_shorter_takes_nothing_away(cache) -> None:
    def change() -> None:
        (cache / "ab" / "old.cubin").unlink()
        write(cache / "index", "i")
        write(cache / "ab" / "new", "12345")

    found = grew(cache, change)
    assert (found["files_new"], found["bytes_grown"]) == (1, 5)


def test_links_that_lead_out_of_the_cache_are_not_followed(cache, tmp_path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere / "a")
    (cache / "out").symlink_to(elsewhere)
    (cache / "loop").symlink_to(cache)
    (cache / "up").symlink_to("../..")
    (cache / "file").symlink_to(elsewhere / "a")

    def change() -> None:
        write(elsewhere / "b")
        write(elsewhere / "a", "x" * 5000)
        (cache / "another").symlink_to(elsewhere / "a")

    found = grew(cache, change)
    assert (found["files_new"], found["bytes_grown"], found["truncated"]) == (0, 0, False)


def test_a_cache_that_is_itself_a_link_is_looked_into(cache, tmp_path) -> None:
    (tmp_path / "home").symlink_to(cache)
    assert grew(tmp_path / "home", lambda: write(cache / "new"))["files_new"] == 1


def test_fifos_and_sockets_are_no_files_and_block_nobody(cache) -> None:
    os.mkfifo(cache / "pipe")
    assert grew(cache, lambda: os.mkfifo(cache / "ab" / "pipe"))["files_new"] == 0


def test_a_cache_that_is_made_meanwhile_is_all_new(tmp_path) -> None:
    top = tmp_path / "later"
    assert grew(top, lambda: write(top / "a" / "b" / "c", "123"))["bytes_grown"] == 3


def test_a_folder_that_is_not_there_has_neither_grown_nor_not(tmp_path, cache) -> None:
    nowhere = tmp_path / "nowhere"
    assert walk(nowhere).absent and walk(cache / "index" / "x").absent
    found = grew(nowhere, lambda: None)
    assert found["files_new"] is None and found["newest_at"] is None and found["why"]


def test_a_folder_that_is_removed_meanwhile_is_gone_and_not_unchanged(cache) -> None:
    def change() -> None:
        for path in (cache / "ab" / "old.cubin", cache / "index"):
            path.unlink()
        (cache / "ab").rmdir()
        cache.rmdir()

    found = grew(cache, change)
    assert found["files_new"] is None and found["why"] == "it is gone"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: drops to another user to see what that user may not")
def test_a_folder_that_is_closed_to_us_says_so(cache) -> None:
    os.chmod(cache, 0o700)
    os.chmod(cache.parent, 0o755)
    read, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgid(65534)
        os.setuid(65534)
        found = walk(cache)
        os.write(write_end, f"{found.why}|{folders.growth(found, found)['files_new']}".encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "Permission denied|None"
    os.waitpid(pid, 0)


@pytest.fixture
def roomy() -> Iterator[Path]:
    """A folder in memory, where there is one: a hundred thousand files take a disk ten seconds."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def test_of_a_hundred_thousand_files_the_new_one_is_found_and_no_walk_outlasts_its_time(roomy) -> None:
    top = roomy / "big"
    top.mkdir()
    for number in range(100_000):
        os.mknod(top / f"{number:052x}")
    before = walk(top)
    write(top / "new.cubin", "n" * 30)
    found = folders.growth(before, walk(top, before))
    assert (found["files_new"], found["bytes_grown"]) == (1, 30)
    assert found["truncated"] is True, "not all sizes were read"
    began = time.monotonic()
    hasty = walk(top, seconds=0.02)
    assert time.monotonic() - began < 1
    assert not folders.growth(hasty, walk(top, hasty))["files_new"]


def test_a_walk_that_had_to_stop_misses_growth_and_never_invents_it(tmp_path) -> None:
    top = tmp_path / "cache"
    for folder in range(40):
        for name in range(10):
            write(top / f"{folder:02}" / f"{name}.py")
    for most in (0, 1, 39, 40, 41, 55, 200, 439):
        before = walk(top, most=most)
        assert before.whole is False
        found = folders.growth(before, walk(top, before))
        assert not found["files_new"] and not found["bytes_grown"] and found["truncated"], most
    before = walk(top, most=55)
    write(top / "40" / "0.py")
    assert folders.growth(before, walk(top, before))["files_new"] == 1, "its folder was surely not there"


def test_files_whose_size_was_not_read_before_have_not_grown(cache, monkeypatch) -> None:
    for number in range(20):
        write(cache / "ab" / f"{number}.py")
    monkeypatch.setattr(folders, "MOST_SIZES", 5)
    before = walk(cache)
    monkeypatch.undo()
    assert len(before.sizes) == 5 and not before.whole
    found = folders.growth(before, walk(cache, before))
    assert (found["files_new"], found["bytes_grown"], found["truncated"]) == (0, 0, True)


def test_no_time_at_all_is_no_growth(cache) -> None:
    found = grew(cache, lambda: write(cache / "new"), seconds=-1.0)
    assert found["files_new"] is None and found["why"]


def test_the_newest_folders_come_first(tmp_path) -> None:
    top = tmp_path / "cache"
    for number in range(50):
        write(top / f"{number:02}" / "a" / "k.py")
        for path in (top / f"{number:02}" / "a", top / f"{number:02}"):
            os.utime(path, (1790000000 - number, 1790000000 - number))
    listed = list(walk(top, most=53).listed)
    assert listed[:3] == ["", "00", "00/a"] and "49" not in listed


def test_a_date_of_a_far_future_and_a_size_beyond_all_sense_stay_within_bounds(cache) -> None:
    def change() -> None:
        os.utime(cache / "index", (2**36, 2**36))
        with open(cache / "sparse", "wb") as out:
            os.truncate(out.fileno(), 1 << 43)
        os.utime(cache / "sparse", (1790000009, 1790000009))

    found = grew(cache, change)
    assert found["newest_at"] == 1790000009.0 and found["bytes_grown"] == 1 << 43


@pytest.mark.parametrize(
    "text, told",
    [(b"abc", b"abc"), (b"", b""), (b"x" * 50 + b"end", b"x" * 7 + b"end")],
)
def test_the_end_of_a_file_is_read(tmp_path, text, told) -> None:
    (tmp_path / "log").write_bytes(text)
    assert folders.tail(str(tmp_path / "log"), 10) == told


def test_the_end_of_what_is_no_file_is_not_read(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "none", "/dev/zero", "/dev/null", "a\0b"):
        assert folders.tail(str(path), 10) is None
