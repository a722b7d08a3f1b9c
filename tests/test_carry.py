"""The operator's own py-spy on its way: only a static binary, only to suspects of its machine, only when stacks are asked."""

from __future__ import annotations

import base64
import json
import os
import shutil
import struct
import sys
import sysconfig
import zlib

import pytest

from triage import carry
from triage.errors import UsageError
from triage.model import Sample


def elf(machine=62, kind=3, headers=(1,), bits=2, order=1):
    head = b"\x7fELF" + bytes([bits, order, 1]) + b"\0" * 9
    head += struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, len(headers), 0, 0, 0)
    return head + b"".join(struct.pack("<I", each) + b"\0" * 52 for each in headers)


def reach(node, machine):
    return Sample("reach", node, "A", "ok", {"machine": machine} if machine else {})


@pytest.mark.parametrize("number, name", [(62, "x86_64"), (183, "aarch64")])
def test_the_machine_is_read_from_the_binary_as_a_node_would_say_it(number, name):
    assert carry.machine_of(elf(number)) == name


@pytest.mark.parametrize(
    "raw, why",
    [
        (b"", "no ELF"), (b"#!/bin/sh\npy-spy", "no ELF"), (elf()[:40], "64-bit"), (elf(bits=1), "64-bit"),
        (elf(order=2), "64-bit"), (elf(machine=3), "no program"), (elf(kind=1), "no program"), (elf(kind=4), "no program"),
        (elf(headers=(1, 3)), "not static"), (elf(headers=(1, 1))[:100], "cut off"),
    ],
)  # fmt: skip
def test_what_is_no_static_program_is_refused(raw, why):
    with pytest.raises(ValueError, match=why):
        carry.machine_of(raw)


def test_a_file_that_is_not_there_is_a_folder_or_is_no_binary_is_one_line(tmp_path):
    (tmp_path / "script").write_text("#!/usr/bin/env python3\n")
    for name in ("absent", ".", "script"):
        with pytest.raises(UsageError, match="--carry-py-spy"):
            carry.read(str(tmp_path / name))


def test_the_interpreter_itself_needs_a_loader_and_is_refused():
    with pytest.raises(UsageError, match="not static"):
        carry.read(os.path.realpath(sys.executable))


def test_the_py_spy_of_the_package_index_may_be_carried_and_comes_out_as_it_went_in():
    spy = shutil.which("py-spy", path=sysconfig.get_path("scripts"))
    if spy is None:
        pytest.skip("py-spy is not installed (pip install -e '.[dev]')")
    program = carry.read(spy)
    lines = [json.loads(line) for line in program.lines()]
    assert all(len(line) < 1 << 20 for line in program.lines())
    assert [line["first"] for line in lines] == [True] + [False] * (len(lines) - 1)
    assert [line["last"] for line in lines] == [False] * (len(lines) - 1) + [True]
    with open(spy, "rb") as file:
        assert zlib.decompress(b"".join(base64.b64decode(line["data"]) for line in lines)) == file.read()


def test_only_nodes_of_its_machine_get_it_and_a_node_that_does_not_say_gets_nothing():
    program = carry.Program("", "x86_64", b"")
    answers = {"a": reach("a", "x86_64"), "b": reach("b", "aarch64"), "c": reach("c", "")}
    assert program.fits(["a", "b", "c", "d"], answers) == (["a"], ["aarch64", "unknown"])


def test_suspects_are_sent_it_and_peers_are_not():
    from dataclasses import dataclass, field
    from types import SimpleNamespace

    from triage.investigate import _carried
    from triage.model import Part
    from triage.tree.walk import Request

    @dataclass
    class Run:
        options: object
        warned: list[str] = field(default_factory=list)

        def evidence(self):
            return SimpleNamespace(latest=lambda probe: {n: reach(n, "x86_64") for n in ("n1", "n2", "n3")})

        def warn(self, line):
            self.warned.append(line)

    request = Request("stacks", (Part("rank", "n2", 5),), 2, "frozen-job:root_lock", {})
    asked = {"n1": {}, "n2": {}, "n3": {}}
    run = Run(SimpleNamespace(carry=carry.Program("", "x86_64", b"x"), say=lambda line: None))
    assert list(_carried(run, request, asked)) == ["n2"] and not run.warned
    run = Run(SimpleNamespace(carry=carry.Program("", "aarch64", b"x"), say=lambda line: None))
    assert _carried(run, request, asked) == {} and "not sent" in run.warned[0]
    assert _carried(Run(SimpleNamespace(carry=None)), request, asked) == {}
