"""The table of Xids says what the notes say, and never more than the driver and the generation allow."""

from __future__ import annotations

import copy
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from triage.errors import ConfigError
from triage.readers import xid
from triage.readers.xid import load, release_of

TEXT = resources.files("triage.playbooks").joinpath("xid.yaml").read_text("utf-8")
# notes/gpu-health.md 3.2, by role as the table there has it (A/S and C/S are decided in the file, with a remark).
CAUSES = [44, 46, 48, 54, 61, 62, 64, 74, 78, 79, 81, 94, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 159,
          166, 167, 168, 169, 170, 173, 175]  # fmt: skip
SYMPTOMS = [43, 45, 108, 137, 174]
APPLICATION = [8, 11, 13, 25, 31, 32, 39, 40, 41, 47, 60, 65, 68, 69, 70, 71, 72, 73, 75, 76, 77, 80, 82, 83, 84, 85, 86,
               88, 89, *range(96, 106), *range(126, 136), 139, 142]  # fmt: skip
INFO = [37, 38, 63, 66, 67, 92, 93, 106, 107, 121, 122, 123, 124, 125, 141, 152, 153, 154, 157, 160, 161, 162, 163, 164,
        165, 171, 172, 176]  # fmt: skip
BY_DRIVER = [*range(144, 152)]
BY_ARCH = [56, 57, 58]


def test_every_xid_of_the_notes_is_there_once_and_no_other() -> None:
    every = [*CAUSES, *SYMPTOMS, *APPLICATION, *INFO, *BY_DRIVER, *BY_ARCH]
    assert sorted(every) == sorted(set(every)) == sorted(load().entries)


@pytest.mark.parametrize(
    "role, codes", [("cause", CAUSES), ("symptom", SYMPTOMS), ("application", APPLICATION), ("info", INFO)]
)
def test_the_role_of_most_needs_no_driver(role: str, codes: list[int]) -> None:
    assert {code: load().meaning(code).role for code in codes} == dict.fromkeys(codes, role)


def test_45_is_a_symptom_on_every_driver_and_generation() -> None:
    for driver in (None, "450.80", "535.129.03", "570.133.20", "999.1"):
        for arch in (None, 7, 9, 10):
            for fatal in (None, True, False):
                assert load().meaning(45, driver=driver, arch=arch, fatal=fatal).role == "symptom"


@pytest.mark.parametrize(
    "code, driver, fatal, role",
    [
        (144, "550.163.01", None, "cause"),  # key rotation
        (144, "550.163.01", True, "cause"),
        (144, "535.129.03", None, "unknown"),
        (144, "555.58", None, "unknown"),
        (144, "570.133.20", None, "unknown"),  # neither word
        (144, "570.133.20", True, "cause"),
        (144, "570.133.20", False, "info"),
        (144, None, None, "unknown"),
        (145, None, True, "cause"),  # the form of its line proves a driver that knows it
        (145, None, False, "info"),
        (145, "550.54", None, "unknown"),
        (149, "580.65.06", True, "cause"),
        (150, "560.28.03", False, "info"),
        (151, "550.90", None, "unknown"),
        (151, "570.1", None, "cause"),
        (151, None, None, "unknown"),
    ],
)
def test_144_to_151_mean_what_the_branch_of_the_driver_says(code, driver, fatal, role) -> None:
    told = load().meaning(code, driver=driver, fatal=fatal)
    assert told.role == role and (role != "unknown" or told.why)


def test_on_the_550_branch_144_is_a_key_rotation_and_not_a_link() -> None:
    assert (load().meaning(144, driver="550.90").cls, load().meaning(144, driver="570.1", fatal=True).cls) == (
        "confidential",
        "nvlink",
    )


@pytest.mark.parametrize(
    "arch, role", [(None, "unknown"), (5, "cause"), (7, "unknown"), (9, "unknown"), (10, "unknown")]
)
def test_old_numbers_are_a_cause_on_old_boards_only(arch, role) -> None:
    assert load().meaning(57, arch=arch).role == role


def test_a_number_that_nobody_listed_is_no_cause() -> None:
    told = load().meaning(9998)
    assert told.role == "unknown" and told.why


@given(st.integers(-5, 99999), st.one_of(st.none(), st.text(max_size=20)), st.one_of(st.none(), st.integers(-1, 50)))
def test_any_number_has_a_meaning_and_a_doubtful_one_says_why(code: int, driver: str | None, arch: int | None) -> None:
    told = load().meaning(code, driver=driver, arch=arch)
    assert told.role in xid.ROLES and told.says() and (told.role != "unknown" or told.why)


@pytest.mark.parametrize(
    "text, parts",
    [("570.133.20", (570, 133, 20)), (" 535.129.03 ", (535, 129, 3)), ("560", (560,)), ("", None), (None, None), ("x", None), ("123456789", None)],
)  # fmt: skip
def test_a_release_is_read_as_numbers(text, parts) -> None:
    assert release_of(text) == parts


@pytest.mark.parametrize(
    "text, says, none",
    [
        ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "reset the GPU", False),
        ("GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", "it has recovered", True),
        ("GPU recovery action changed from 0x0 (None) to 0x9 (Something New)", "Something New", False),
    ],
)  # fmt: skip
def test_an_xid_154_asks_for_what_its_second_word_says(text, says, none) -> None:
    told = xid.recovery_of(text, load())
    assert told is not None and (told.says, told.none) == (says, none)


def test_a_line_without_a_change_asks_for_nothing() -> None:
    assert xid.recovery_of("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", load()) is None


def data() -> dict[str, Any]:
    return yaml.safe_load(TEXT)


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda d: d["xids"].append(copy.deepcopy(d["xids"][0])), "twice"),
        (lambda d: d["xids"][0].pop("name"), "name is missing"),
        (lambda d: d["xids"][0].update(role="guilty"), "role 'guilty'"),
        (lambda d: d["xids"][0].update({"class": "x"}), "class 'x'"),
        (lambda d: d["xids"][0].update(codes=["8"]), "codes is no list"),
        (lambda d: d["xids"][0].update(codes=[True]), "codes is no list"),
        (lambda d: d["xids"][0].update(colour="red"), "unknown key 'colour'"),
        (lambda d: d["xids"][0].update(weak="yes"), "weak is neither"),
        (lambda d: d["xids"][0].update(by_driver=[{"below": 560}]), "below is no release"),
        (lambda d: d["xids"][0].update(by_driver=[{"below": "560"}, {"below": "550"}]), "order of the releases"),
        (lambda d: d["xids"][0].update(by_arch=[{"from": "7"}]), "from is no number"),
        (lambda d: d.update(version=2), "version is 2"),
        (lambda d: d.pop("recovery_actions"), "recovery_actions"),
        (lambda d: d.update(xids="no"), "no list `xids`"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_the_reason(change, says) -> None:
    broken = data()
    change(broken)
    assert any(says in problem for problem in xid.read(broken)[1])


def test_a_file_that_is_no_table_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "xid.yaml").write_text("xids: [")
    with pytest.raises(ConfigError, match=r"xid\.yaml"):
        load(tmp_path / "xid.yaml")
