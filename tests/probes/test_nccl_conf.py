"""What NCCL's configuration file adds to a rank's environment, as NCCL itself reads it (notes/network.md 4.2)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from triage.probes import _nccl_conf, ranks
from triage.probes._probe import Ctx

NAMES = ranks.CONF_NAMES
STAT = "{pid} (python) S 1 {pid} {pid} 0 -1 4194304 0 0 0 0 5 5 0 0 20 0 3 0 5000 0 0" + " 0" * 30


@pytest.fixture
def node(tmp_path):
    """A folder in the place of /proc with one rank, whose root is a folder of its own."""

    def made(conf=None, env=None, pid=4242):
        base = tmp_path / "proc" / str(pid)
        (base / "root" / "etc").mkdir(parents=True, exist_ok=True)
        told = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500", **(env or {})}
        (base / "environ").write_bytes(b"\0".join(f"{k}={v}".encode() for k, v in told.items()))
        (base / "stat").write_text(STAT.format(pid=pid))
        (base / "cmdline").write_bytes(b"python\0train.py\0")
        if conf is not None:
            (base / "root" / "etc" / "nccl.conf").write_text(conf)
        return base

    made.look = lambda: ranks.collect(Ctx(procfs=str(tmp_path / "proc")))["ranks"]
    return made


def test_the_file_adds_what_the_environment_leaves_out_and_never_overrules_it(node):
    node("NCCL_IB_TIMEOUT=22\nNCCL_IB_HCA=mlx5_7\n", {"NCCL_IB_HCA": "mlx5_0"})
    (row,) = node.look()
    assert row["conf"] == {"NCCL_IB_TIMEOUT": "22"}
    assert row["env"]["NCCL_IB_HCA"] == "mlx5_0"


def test_a_rank_without_the_file_has_no_word_of_it(node):
    node()
    (row,) = node.look()
    assert "conf" not in row


def test_an_empty_value_in_the_environment_is_set_all_the_same(node):
    node("NCCL_IB_TIMEOUT=22\n", {"NCCL_IB_TIMEOUT": ""})
    (row,) = node.look()
    assert "conf" not in row


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("NCCL_IB_TIMEOUT=22", "22"),
        ("#NCCL_IB_TIMEOUT=22", None),
        (" NCCL_IB_TIMEOUT=22", None),  # NCCL trims nothing: that names another variable
        ("NCCL_IB_TIMEOUT =22", None),
        ("NCCL_IB_TIMEOUT= 22", " 22"),
        ("NCCL_IB_TIMEOUT", None),
        ("NCCL_IB_TIMEOUT=14\nNCCL_IB_TIMEOUT=22", "14"),  # setenv without overwriting: the first line stays
        ("export NCCL_IB_TIMEOUT=22", None),
    ],
)
def test_a_line_is_read_as_nccl_reads_it(line, value):
    assert _nccl_conf.settings(line, NAMES).get("NCCL_IB_TIMEOUT") == value


def test_nothing_but_the_names_of_nccl_leaves_the_node(node):
    node("AWS_SECRET_ACCESS_KEY=abc\nNCCL_API_TOKEN=abc\nHOME=/x\nRANK=7\nNCCL_IB_TIMEOUT=18\n")
    (row,) = node.look()
    assert row["conf"] == {"NCCL_IB_TIMEOUT": "18"}


def test_the_file_that_the_environment_names_comes_first_if_it_lies_below_etc(node):
    base = node("NCCL_IB_TIMEOUT=18\nNCCL_IB_RETRY_CNT=3\n", {"NCCL_CONF_FILE": "/etc/site.conf"})
    (base / "root" / "etc" / "site.conf").write_text("NCCL_IB_TIMEOUT=23\n")
    (row,) = node.look()
    assert row["conf"] == {"NCCL_IB_TIMEOUT": "23", "NCCL_IB_RETRY_CNT": "3"}


@pytest.mark.parametrize("path", ["/home/me/nccl.conf", "/etc/../home/me/nccl.conf", "nccl.conf"])
def test_a_file_elsewhere_is_left_alone_for_its_mount_may_not_answer(path):
    assert _nccl_conf.files({"NCCL_CONF_FILE": path}) == (["/etc/nccl.conf"], path)


def test_a_link_or_a_pipe_in_the_files_place_is_not_followed(node, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("NCCL_IB_TIMEOUT=22\n")
    base = node()
    os.symlink(secret, base / "root" / "etc" / "nccl.conf")
    assert "conf" not in node.look()[0]
    os.unlink(base / "root" / "etc" / "nccl.conf")
    os.mkfifo(base / "root" / "etc" / "nccl.conf")
    assert "conf" not in node.look()[0]


def test_a_huge_or_odd_file_is_bounded_and_cleaned(node):
    base = node("NCCL_NET=So\x1b[31mcket" + "x" * 9000 + "\n" + "A=1\n" * 100000 + "NCCL_IB_TIMEOUT=22\n")
    (row,) = node.look()
    assert set(row["conf"]) == {"NCCL_NET"} and len(row["conf"]["NCCL_NET"]) == 256
    assert row["conf"]["NCCL_NET"].isprintable()
    (base / "root" / "etc" / "nccl.conf").write_bytes(b"\xff\xfeNCCL_IB_TIMEOUT=22\n")
    assert "conf" not in node.look()[0]


def test_the_probe_finds_its_helper_beside_itself(tmp_path):
    script = Path(ranks.__file__)
    done = subprocess.run([sys.executable, str(script), "--procfs", str(tmp_path)], capture_output=True, text=True)
    assert json.loads(done.stdout)["status"] == "ok"
