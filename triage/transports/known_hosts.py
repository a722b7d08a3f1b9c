"""Whose host key is this? An index over known_hosts files, read once.

    gpu001,10.0.0.1 ssh-ed25519 AAAA...            names, comma separated
    [gpu001]:2201 ssh-ed25519 AAAA...              another port
    gpu*,!gpu099 ssh-ed25519 AAAA...               wildcards and negation
    |1|<salt>|<hash> ssh-ed25519 AAAA...           a hashed name (HMAC-SHA1 of the name)
    @revoked gpu007 ssh-ed25519 AAAA...            never accept this key
    @cert-authority *.cluster ssh-ed25519 AAAA...  told: host certificates are left to the ssh binary (openssh.py)

paramiko's own reader is quadratic, knows no wildcards, and one @-line makes it fail (notes/fanout-and-schedulers.md
1.3 and 2). Checking a key looks at the entries that hold this very key first, so a thousand hashed names cost one
HMAC per node and not three thousand.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from triage import ownfiles

MAX_FILE = 64 << 20
Judgement = Literal["known", "unknown", "other_type", "mismatch", "revoked"]


@dataclass(frozen=True)
class Entry:
    """One line: the key, whom it belongs to, and where it stands."""

    marker: str
    names: tuple[str, ...]  # patterns as written, lower case; () if hashed
    salt: bytes
    digest: bytes
    key_type: str
    key: bytes
    place: str  # "file:12"

    def belongs_to(self, name: str) -> bool:
        if self.digest:
            return hmac.compare_digest(hmac.digest(self.salt, name.encode(), "sha1"), self.digest)
        hit = False
        for pattern in self.names:
            if _matches(name, pattern.removeprefix("!")):
                if pattern.startswith("!"):
                    return False
                hit = True
        return hit


@dataclass(frozen=True)
class Answer:
    """What the files say about a key that a host offered; `entries` are the lines that made the judgement."""

    judgement: Judgement
    entries: tuple[Entry, ...] = ()
    authority: Entry | None = None  # a @cert-authority line for this host, which this transport cannot use


@dataclass
class KnownHosts:
    """All entries of some known_hosts files. `problems` are lines and files that could not be used."""

    problems: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)  # files that did not answer
    _exact: dict[str, list[Entry]] = field(default_factory=dict)
    _patterns: list[Entry] = field(default_factory=list)
    _hashed: list[Entry] = field(default_factory=list)
    _by_key: dict[bytes, list[Entry]] = field(default_factory=dict)

    @classmethod
    def load(cls, paths: Iterable[str | Path]) -> KnownHosts:
        """Read several files; an absent one is noted in `problems`, never an error."""
        index = cls()
        for path in paths:
            try:
                text = ownfiles.read(str(Path(path).expanduser()), MAX_FILE).decode("utf-8", "replace")
            except ownfiles.TooSlow as exc:
                index.silent.append(str(exc))
                continue
            except OSError as exc:
                index.problems.append(f"{path}: {exc.strerror}")
                continue
            for number, line in enumerate(text.splitlines(), 1):
                index.add(line, f"{path}:{number}")
        return index

    def add(self, line: str, place: str = "") -> None:
        """One line of a file. What is no entry goes to `problems`."""
        text = line.strip()
        if not text or text.startswith("#"):
            return
        entry = _parse(text, place)
        if entry is None:
            self.problems.append(f"{place}: no known_hosts line")
            return
        self._by_key.setdefault(entry.key, []).append(entry)
        if entry.digest:
            self._hashed.append(entry)
        elif all(_is_plain(name) for name in entry.names):
            for name in entry.names:
                self._exact.setdefault(name, []).append(entry)
        else:
            self._patterns.append(entry)

    def key_types(self, host: str, port: int, address: str = "") -> list[str]:
        """The key types that plain and wildcard lines hold for a host: what to ask the server for. Cheap."""
        for name in _identities(host, port, address):
            entries = [*self._exact.get(name, ()), *(e for e in self._patterns if e.belongs_to(name))]
            types = list(dict.fromkeys(e.key_type for e in entries if not e.marker))
            if types:
                return types
        return []

    def only_authority(self, host: str, port: int, address: str) -> Entry | None:
        """The @cert-authority line of a host that no plain line knows: its key can only be judged by its certificate."""
        names = _identities(host, port, address)
        authority = self._authority([*names, *_portless(host, port, address)])
        return authority if authority and not any(self._entries(name) for name in names) else None

    def check(self, host: str, port: int, address: str, key_type: str, key: bytes) -> Answer:
        """Judge a key offered by `host` (its name in the job), which we reached at `address`:`port`.

        The name decides if any line knows it, else the address: a machine that took over an address must not pass
        for the name. On another port, a line without a port only counts where it holds this very key, as in ssh.
        """
        same = self._by_key.get(key, [])
        names = _identities(host, port, address)
        everywhere = [*names, *_portless(host, port, address)]
        revoked = [e for e in same if e.marker == "@revoked" and any(e.belongs_to(n) for n in everywhere)]
        if revoked:
            return Answer("revoked", tuple(revoked))
        for name in names:
            match = [e for e in same if not e.marker and e.key_type == key_type and e.belongs_to(name)]
            # A second name may only be asked if the first is in no line; where the key is found under the first name,
            # nothing more needs to be searched.
            if match:
                return Answer("known", tuple(match))
            others = self._entries(name)
            if others:
                same_type = [e for e in others if e.key_type == key_type]
                authority = self._authority(everywhere)
                return Answer("mismatch" if same_type else "other_type", tuple(same_type or others), authority)
        for name in _portless(host, port, address):
            match = [e for e in same if not e.marker and e.key_type == key_type and e.belongs_to(name)]
            if match:
                return Answer("known", tuple(match))
        return Answer("unknown", (), self._authority(everywhere))

    def _entries(self, name: str) -> list[Entry]:
        found = [*self._exact.get(name, ()), *(e for e in [*self._patterns, *self._hashed] if e.belongs_to(name))]
        return [e for e in found if not e.marker]

    def _authority(self, names: Iterable[str]) -> Entry | None:
        lines = [*(e for n in names for e in self._exact.get(n, ())), *self._patterns, *self._hashed]
        return next((e for e in lines if e.marker == "@cert-authority" and any(e.belongs_to(n) for n in names)), None)


def fingerprint(key: bytes) -> str:
    """`SHA256:...` as ssh prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def with_port(host: str, port: int) -> str:
    """How known_hosts writes a host: `gpu001`, or `[gpu001]:2201`."""
    host = host.lower()
    return host if port == 22 else f"[{host}]:{port}"


def _identities(host: str, port: int, address: str) -> list[str]:
    """The names to look for, the deciding one first."""
    return list(dict.fromkeys(with_port(n, port) for n in (host, address) if n))


def _portless(host: str, port: int, address: str) -> list[str]:
    return [] if port == 22 else list(dict.fromkeys(n.lower() for n in (host, address) if n))


def _is_plain(pattern: str) -> bool:
    return not pattern.startswith("!") and "*" not in pattern and "?" not in pattern


def _matches(name: str, pattern: str) -> bool:
    """ssh's patterns know * and ? only; brackets are literal (they stand around a host with a port)."""
    if _is_plain(pattern):
        return name == pattern
    return re.fullmatch(fnmatch.translate(pattern.replace("[", "[[]")), name) is not None


def _parse(text: str, place: str) -> Entry | None:
    marker = ""
    if text.startswith("@"):
        marker, _, text = text.partition(" ")
        if marker not in ("@revoked", "@cert-authority"):
            return None
    fields = text.split()
    if len(fields) < 3:
        return None
    names, key_type, encoded = fields[:3]
    try:
        key = base64.b64decode(encoded, validate=True)
        if names.startswith("|"):
            _, version, salt, digest = names.split("|")
            if version != "1":
                return None
            return Entry(marker, (), base64.b64decode(salt), base64.b64decode(digest), key_type, key, place)
    except (ValueError, binascii.Error):
        return None
    # The blob names its own type; a line where they differ belongs to nobody.
    if key[4 : 4 + int.from_bytes(key[:4], "big")] != key_type.encode():
        return None
    return Entry(marker, tuple(n for n in names.lower().split(",") if n), b"", b"", key_type, key, place)
