"""Whose key is this: our index against what ssh-keygen itself finds in the same file."""

import base64
import itertools
import shutil
import subprocess

import pytest
import ssh_servers

from triage.transports.known_hosts import KnownHosts, fingerprint, with_port

KEYS = {name: ssh_servers.host_key() for name in ("a", "b", "c", "revoked", "authority")}


def blob(name):
    return KEYS[name].asbytes()


def text(name):
    return f"ssh-ed25519 {KEYS[name].get_base64()}"


def index(*lines):
    known = KnownHosts()
    for number, line in enumerate(lines, 1):
        known.add(line, f"file:{number}")
    return known


def judge(known, host, key, port=22, address=""):
    return known.check(host, port, address, "ssh-ed25519", blob(key)).judgement


LINES = [
    f"gpu001,10.0.0.1 {text('a')}",
    f"[gpu002]:2201 {text('a')}",
    f"rack*-gpu?,!rack9-gpu1 {text('b')}",
    f"[lab*]:2201 {text('b')} a comment with spaces",
    f"UPPER.example.com {text('c')}",
    f"@revoked old* {text('revoked')}",
    f"@cert-authority *.site {text('authority')}",
    f"gpu001 ssh-rsa {base64.b64encode(b'x' * 9).decode()}",  # a blob that names no type
    "# a comment",
    "",
    "half a line",
    f"@unheard-of gpu003 {text('a')}",
]


def test_names_ports_wildcards_and_negation():
    known = index(*LINES)
    assert judge(known, "gpu001", "a") == "known"
    assert judge(known, "10.0.0.1", "a") == "known"
    assert judge(known, "gpu001", "b") == "mismatch"
    assert judge(known, "gpu002", "a", port=2201) == "known"
    assert judge(known, "gpu002", "a") == "unknown", "known on another port only"
    assert judge(known, "rack1-gpu7", "b") == "known"
    assert judge(known, "rack9-gpu1", "b") == "unknown", "negated"
    assert judge(known, "rack1-gpu77", "b") == "unknown", "? is one character"
    assert judge(known, "lab7", "b", port=2201) == "known"
    assert judge(known, "upper.EXAMPLE.com", "c") == "known"
    assert judge(known, "gpu003", "a") == "unknown", "a marker that we do not know is no entry"


def test_lines_that_cannot_be_used_are_told_and_do_not_spoil_the_rest():
    known = index(*LINES)
    assert len(known.problems) == 3
    assert all(": no known_hosts line" in p for p in known.problems)


def test_a_revoked_key_is_revoked_whatever_else_the_file_says():
    known = index(*LINES, f"old7 {text('revoked')}")
    assert judge(known, "old7", "revoked") == "revoked"
    assert judge(known, "new7", "revoked") == "unknown"


def test_a_certificate_authority_is_named_where_it_would_have_helped():
    answer = index(*LINES).check("gpu001.site", 22, "", "ssh-ed25519", blob("a"))
    assert answer.judgement == "unknown"
    assert answer.authority is not None and answer.authority.place == "file:7"


def test_the_name_decides_before_the_address_so_a_taken_over_address_does_not_pass():
    known = index(f"gpu001 {text('a')}", f"10.0.0.9 {text('b')}")
    assert judge(known, "gpu001", "b", address="10.0.0.9") == "mismatch"
    assert judge(known, "gpu404", "b", address="10.0.0.9") == "known"


def test_on_another_port_a_line_without_port_counts_only_where_it_holds_this_key():
    known = index(f"gpu001 {text('a')}")
    assert judge(known, "gpu001", "a", port=2201) == "known"
    assert judge(known, "gpu001", "b", port=2201) == "unknown"


def test_a_key_of_another_type_is_not_yet_a_changed_key():
    known = index(f"gpu001 {text('a')}")
    assert known.check("gpu001", 22, "", "ecdsa-sha2-nistp256", b"other").judgement == "other_type"
    assert known.key_types("gpu001", 22) == ["ssh-ed25519"]
    assert known.key_types("gpu002", 22) == []


def test_several_files_are_read_once_and_an_absent_one_is_told(tmp_path):
    (tmp_path / "one").write_text(f"gpu001 {text('a')}\n")
    (tmp_path / "two").write_bytes(b"\xff\xfe\n" + f"gpu002 {text('b')}".encode())
    known = KnownHosts.load([tmp_path / "one", tmp_path / "two", tmp_path / "none"])
    assert (judge(known, "gpu001", "a"), judge(known, "gpu002", "b")) == ("known", "known")
    assert any("No such file" in p for p in known.problems)


def test_a_bracket_in_a_pattern_is_no_character_class():
    known = index(f"[gpu*]:2201 {text('a')}")
    assert judge(known, "gpu1", "a", port=2201) == "known"
    assert judge(known, "g", "a") == "unknown"


needs_keygen = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen (openssh-client)")


@needs_keygen
def test_fingerprints_are_those_of_ssh_keygen(tmp_path):
    (tmp_path / "key.pub").write_text(text("a") + "\n")
    said = subprocess.check_output(["ssh-keygen", "-lf", tmp_path / "key.pub"], text=True)
    assert fingerprint(blob("a")) in said


@needs_keygen
@pytest.mark.parametrize("hashed", [False, True])
def test_we_find_the_lines_that_ssh_keygen_finds(tmp_path, hashed):
    usable = [line for line in LINES if line and "ssh-rsa" not in line and "unheard" not in line and "half" not in line]
    path = tmp_path / "known_hosts"
    path.write_text("\n".join(usable) + "\n")
    if hashed:
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", path], check=True, capture_output=True)
        assert "|1|" in path.read_text()
    known = KnownHosts.load([path])
    assert known.problems == []
    hosts = ["gpu001", "10.0.0.1", "gpu002", "rack1-gpu7", "rack9-gpu1", "lab7", "upper.example.com", "nobody"]
    for host, port in itertools.product(hosts, (22, 2201)):
        name = with_port(host, port)
        found = subprocess.run(["ssh-keygen", "-F", name, "-f", path], capture_output=True, text=True).stdout
        keys = {line.split()[-1] for line in found.splitlines() if line and not line.startswith("#")}
        keys |= {field for line in found.splitlines() for field in line.split() if field.startswith("AAAA")}
        for key in ("a", "b", "c"):
            listed = KEYS[key].get_base64() in keys
            ours = [e for e in known._by_key.get(blob(key), []) if e.belongs_to(name)]
            assert bool(ours) == listed, (name, key, found)


@needs_keygen
def test_hashed_names_are_judged_like_plain_ones(tmp_path):
    path = tmp_path / "known_hosts"
    path.write_text(f"gpu001 {text('a')}\n[gpu002]:2201 {text('b')}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", path], check=True, capture_output=True)
    known = KnownHosts.load([path])
    assert judge(known, "gpu001", "a") == "known"
    assert judge(known, "gpu001", "b") == "mismatch"
    assert judge(known, "gpu002", "b", port=2201) == "known"
    assert judge(known, "gpu003", "a") == "unknown"
