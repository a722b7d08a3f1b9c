"""Files of our own machine are read with patience, and never waited for."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triage import ownfiles
from triage.scribe import Scribe


@pytest.fixture(autouse=True)
def nothing_has_stalled():
    ownfiles.forget()
    yield
    ownfiles.forget()


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


def test_what_was_begun_long_ago_is_still_answered(tmp_path):
    (tmp_path / "f").write_text("here")
    ownfiles.ahead(read=[str(tmp_path / "f")], there=[str(tmp_path)])
    time.sleep(0.3)
    touch = ownfiles._AHEAD["read", str(tmp_path / "f")]
    touch._end = time.monotonic() - 5.0  # its patience is over, and its answer lies there
    assert ownfiles.read(str(tmp_path / "f")) == b"here"
    assert ownfiles.exists(str(tmp_path))


def test_what_was_begun_and_is_absent_says_so(tmp_path):
    ownfiles.ahead(read=[str(tmp_path / "none")], there=[str(tmp_path / "none")])
    with pytest.raises(FileNotFoundError, match="No such file"):
        ownfiles.read(str(tmp_path / "none"))
    assert not ownfiles.exists(str(tmp_path / "none"))


def test_after_one_stall_the_patience_is_shorter_and_what_lives_is_still_read(tmp_path):
    with pytest.raises(ownfiles.TooSlow):
        ownfiles.compute(lambda: time.sleep(60) or b"", "/dead/mount", 0.1)
    (tmp_path / "f").write_text("here")
    assert ownfiles.read(str(tmp_path / "f")) == b"here"
    began = time.monotonic()
    with pytest.raises(ownfiles.TooSlow, match="within 1s"):
        ownfiles.compute(lambda: time.sleep(60) or b"", "/other/mount")
    assert time.monotonic() - began < ownfiles.PATIENCE_S


def test_pieces_that_keep_coming_are_waited_for_longer_than_one_patience():
    def slow():
        for _ in range(5):
            time.sleep(0.2)
            yield b"x" * 100_000

    assert len(b"".join(ownfiles.stream(slow, "/slow", 0.6))) == 500_000


def test_a_reader_that_takes_its_time_is_not_the_files_fault():
    pieces = ownfiles.stream(lambda: (b"x" * 200_000 for _ in range(20)), "/file", 0.5)
    got = len(next(pieces))
    time.sleep(1.0)
    assert got + sum(map(len, pieces)) == 4_000_000


def test_only_a_plain_file_that_may_be_read_opens(tmp_path):
    (tmp_path / "f").write_text("")
    os.mkfifo(tmp_path / "fifo")
    assert ownfiles.opens_plain(str(tmp_path / "f"))
    assert not any(map(ownfiles.opens_plain, (str(tmp_path), str(tmp_path / "fifo"), str(tmp_path / "none"))))


def test_a_link_in_the_place_of_a_plain_file_is_refused(tmp_path):
    (tmp_path / "f").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    with pytest.raises(OSError):
        ownfiles.read_plain(str(tmp_path / "link"), 100)
    with pytest.raises(OSError, match="is not a plain file"):
        ownfiles.read_plain(str(tmp_path), 100)


def test_a_mark_is_new_once(tmp_path):
    path = str(tmp_path / "pokes" / "a")
    assert ownfiles.mark(path) and not ownfiles.mark(path)


def test_a_private_folder_is_made_where_a_temporary_folder_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    made = Path(ownfiles.private_folder())
    assert made.stat().st_mode & 0o777 == 0o700 and made.parent != tmp_path
    made.rmdir()


def test_a_child_that_hangs_holds_neither_our_output_nor_anything_else_of_ours():
    code = (
        "import os, time; from triage import ownfiles\n"
        "pipe, other = os.pipe()\n"
        "touch = ownfiles.Touch(lambda: time.sleep(40) or (), '/dead', 30)\n"
        "os.close(other); time.sleep(1); print(os.read(pipe, 1) == b'', flush=True); os._exit(0)"  # the child lives on
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n" and time.monotonic() - began < 15, done.stderr


# ---------------------------------------------------------------- the scribe


def test_what_the_scribe_is_given_is_written_and_summed(tmp_path):
    scribe = Scribe(tmp_path / "a" / "case")
    for number in range(3):
        scribe.append("log", b"%d\n" % number)
    scribe.put("folder/file", b"x" * 3_000_000)
    scribe.sums("SUMS")
    scribe.settle()
    folder = tmp_path / "a" / "case"
    assert scribe.trouble is None and not scribe.stalled
    assert (folder / "log").read_bytes() == b"0\n1\n2\n" and (folder / "folder/file").stat().st_size == 3_000_000
    done = subprocess.run(["sha256sum", "-c", "SUMS"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and "log: OK" in done.stdout and "folder/file: OK" in done.stdout
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "log").stat().st_mode & 0o777 == 0o600


def test_a_scribe_that_does_not_take_what_it_is_given_costs_one_wait(tmp_path):
    scribe = Scribe(tmp_path / "case", patience_s=0.3)
    scribe.append("log", b"first\n")
    scribe.settle()
    os.kill(scribe._child, signal.SIGSTOP)
    began = time.monotonic()
    for _ in range(50):
        scribe.append("log", b"x" * 1_000_000)
    scribe.put("file", b"")
    scribe.settle()
    assert time.monotonic() - began < 2.0
    assert scribe.stalled and scribe.trouble == ("be written on in", "it did not answer within 0.3s")
    assert (tmp_path / "case" / "log").read_bytes() == b"first\n"


def test_a_scribe_whose_run_is_killed_writes_what_it_was_given(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from triage.scribe import Scribe\n"
        "scribe = Scribe(Path(sys.argv[1])); scribe.append('log', b'x' * 500_000); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "case")]).returncode == -9
    until = time.monotonic() + 10
    while time.monotonic() < until and not (tmp_path / "case" / "log").exists():
        time.sleep(0.02)
    while time.monotonic() < until and (tmp_path / "case" / "log").stat().st_size < 500_000:
        time.sleep(0.02)
    assert (tmp_path / "case" / "log").stat().st_size == 500_000
