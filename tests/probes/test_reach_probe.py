"""Who are we on the node, and how much may we see?"""

from __future__ import annotations

import os
import time

from triage.probes import reach
from triage.probes._probe import Ctx


def test_this_machine_is_told() -> None:
    data = reach.collect(Ctx())
    assert data["uid"] == os.geteuid() and data["root"] is (os.geteuid() == 0)
    assert data["uptime_s"] > 0 and abs(data["now_s"] - time.time()) < 5 and data["cpus"] >= 1
    assert data["hostname"] and data["user"] and data["kernel"] and len(data["boot_id"]) == 36


def test_an_ordinary_user_does_not_see_all() -> None:
    # The rule, not the machine: root without the capability (a container) sees as little as a user.
    assert reach.may_trace("Name:\tx\nCapEff:\t000001ffffffffff\n") is True
    assert reach.may_trace("Name:\tx\nCapEff:\t00000000a80425fb\n") is False
    assert reach.may_trace("CapEff:\tgarbage\n") is None and reach.may_trace(None) is None


def test_an_empty_procfs_leaves_everything_unknown_and_nothing_zero(tmp_path) -> None:
    data = reach.collect(Ctx(procfs=str(tmp_path), rootfs=str(tmp_path)))
    assert data["uptime_s"] is None and data["load1"] is None and data["boot_id"] is None and data["hidepid"] is None


def test_the_hostname_cannot_carry_control_characters(tmp_path) -> None:
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/hostname").write_text("gpu\x1b[2J003" + "x" * 500 + "\n")
    name = reach.collect(Ctx(procfs=str(tmp_path)))["hostname"]
    assert "\x1b" not in name and len(name) <= 128
