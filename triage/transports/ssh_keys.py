"""The keys to log in with: named files, else the agent's and ~/.ssh/id_*. Each is loaded once and shared.

Loading an RSA key costs 110 to 500 ms of CPU (its primes are checked): once per node would be minutes for a thousand
nodes (notes/fanout-and-schedulers.md 1.3). An agent that hangs, or a home directory on a dead mount, is left alone
after 2 s; files are only touched by children (ownfiles.py).
"""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from triage import ownfiles
from triage.errors import ConfigError
from triage.transports.base import plain

T = TypeVar("T")

PATIENCE_S = 2.0
MAX_KEY = 1 << 20  # bytes of a key file
DEFAULT_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


class _SharedAgentKey(paramiko.AgentKey):
    """A key in the agent, usable from many threads: the agent's connection answers one question at a time."""

    lock = threading.Lock()

    def sign_ssh_data(self, data: Any, algorithm: str | None = None) -> Any:
        with self.lock:
            return super().sign_ssh_data(data, algorithm)


@dataclass
class Identities:
    """Keys in the order in which they are tried, and what could not be used."""

    keys: list[paramiko.PKey] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)  # files, and the agent, that did not answer
    words: str = "no key"  # "key ~/.ssh/id_ed25519", "2 keys of the agent": for the message of a refused login
    hardware: list[str] = field(default_factory=list)  # files of keys on a security key, which only ssh itself can use

    @classmethod
    def load(
        cls,
        files: Sequence[str],
        agent: bool | str = True,
        *,
        strict: bool = True,
        certificates: Sequence[str] = (),
        only_named: bool = False,
    ) -> Identities:
        """The keys of these files; without any, the agent's and the usual files. ConfigError if none works.

        agent         False: no agent; a path: the agent at that socket, which is asked as well (IdentityAgent)
        strict        the files were named on purpose: each must work, and the agent only unlocks them
        certificates  more files of certificates for these keys (CertificateFile)
        only_named    of the agent only keys whose file is named (IdentitiesOnly)
        """
        found = cls()
        strict = strict and bool(files)
        wanted = list(files) or [os.path.expanduser(p) for p in DEFAULT_FILES]
        ownfiles.ahead(
            read=[*wanted, *certificates]
        )  # all at once: one after the other would cost a dead home three times
        held = _agent_keys(found, agent if isinstance(agent, str) else "") if agent else []
        for path in wanted:
            found._take_file(path, held, strict)
        if not strict and not only_named:
            blobs = {key.asbytes() for key in found.keys}
            others = [key for key in held if key.asbytes() not in blobs]
            found.keys = [*found.keys, *others] if files else [*others, *found.keys]
        for path in certificates:
            found._take_certificate(path)
        found.words = f"key {', '.join(files)}" if strict else f"{len(found.keys)} keys of the agent and ~/.ssh"
        if files and not strict:
            found.words = f"{len(found.keys)} keys of the agent and the ssh_config"
        return found

    def must_work(self) -> None:
        """ConfigError where there is nothing to log in with."""
        if not self.keys:
            why = f": {self.problems[0]}" if self.problems else ""
            raise ConfigError(f"no SSH key to log in with{why}. Name one under `ssh: key:`, or ssh-add it to an agent")

    def _take_file(self, path: str, held: Sequence[paramiko.PKey], strict: bool) -> None:
        try:
            self.keys.append(_from_file(path, held))
        except FileNotFoundError:
            if strict:
                raise ConfigError(f"SSH key {path}: no such file") from None
        except ownfiles.TooSlow as exc:
            self.silent += [] if exc.below else [f"SSH key {exc}"]
            self.problems.append(f"SSH key {exc}")
        except OnHardware:
            self.hardware.append(path)
        except ConfigError as exc:
            if strict:
                raise
            self.problems.append(str(exc))

    def _take_certificate(self, path: str) -> None:
        """Put the key that this certificate is for in front of all, with it."""
        try:
            text = ownfiles.read(path, MAX_KEY).decode("utf-8", "replace")
            certified = paramiko.pkey.PublicBlob.from_string(" ".join(text.split()[:2])).key_blob
        except (OSError, ValueError, IndexError) as exc:
            self.problems.append(f"certificate {path}: {plain(str(exc))}")
            return
        for key in list(self.keys):
            if _is_for(certified, key.asbytes()):
                with_it = copy.copy(key)
                with_it.load_certificate(text)
                self.keys.insert(0, with_it)
                return
        self.problems.append(f"certificate {path}: none of the keys is its own")


class OnHardware(ConfigError):
    """A key that lies on a FIDO security key: paramiko cannot use it."""


def _is_for(certificate: bytes, key: bytes) -> bool:
    """Does this certificate hold this public key? After its type and a nonce come the fields of the key."""
    fields = memoryview(key)[4 + int.from_bytes(key[:4], "big") :]
    at = 4 + int.from_bytes(certificate[:4], "big")
    at += 4 + int.from_bytes(certificate[at : at + 4], "big")
    return bool(fields) and certificate[at : at + len(fields)] == fields


def within(seconds: float, action: Callable[[], T]) -> T:
    """The result of `action`, or TimeoutError; its thread is then left behind."""
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((action(), None))
        except BaseException as exc:
            results.put((None, exc))

    threading.Thread(target=run, daemon=True).start()
    try:
        value, error = results.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def _from_file(path: str, held: Sequence[paramiko.PKey]) -> paramiko.PKey:
    """The key of one file; an encrypted one only if the agent holds it (by the .pub file beside it)."""
    try:
        return _parse(ownfiles.read(path, MAX_KEY), path)
    except (FileNotFoundError, ownfiles.TooSlow, OnHardware):
        raise
    except (paramiko.PasswordRequiredException, TypeError) as exc:
        # cryptography says TypeError for a key that needs a passphrase
        public = _public_blob(path + ".pub")
        for key in held:
            if public and key.asbytes() == public:
                return key
        raise ConfigError(f"SSH key {path} is encrypted and no agent holds it. Do: ssh-add {path}") from exc
    except OSError as exc:
        raise ConfigError(f"SSH key {path}: {exc.strerror}") from exc
    except Exception as exc:  # cryptography, paramiko and bcrypt each have errors of their own for a bad file
        raise ConfigError(f"SSH key {path} cannot be read: {str(exc)[:120] or type(exc).__name__}") from exc


def _parse(data: bytes, path: str) -> paramiko.PKey:
    """The key in these bytes, with the certificate beside its file: as paramiko.PKey.from_path, which reads by itself."""
    if _on_hardware(data):
        raise OnHardware(f"SSH key {path} lies on a security key, which only the ssh binary can use")
    try:
        loaded: Any = serialization.load_ssh_private_key(data, None)
    except ValueError:
        loaded = serialization.load_pem_private_key(data, None)
    kinds = (
        (ed25519.Ed25519PrivateKey, paramiko.Ed25519Key),
        (ec.EllipticCurvePrivateKey, paramiko.ECDSAKey),
        (rsa.RSAPrivateKey, paramiko.RSAKey),
    )
    kind = next((key for private, key in kinds if isinstance(loaded, private)), None)
    if kind is None:
        raise paramiko.SSHException(f"{type(loaded).__name__} is no kind of key that logs in anywhere")
    key: paramiko.PKey = kind.from_private_key(io.StringIO(data.decode("utf-8", "replace")))
    with contextlib.suppress(FileNotFoundError):
        key.load_certificate(ownfiles.read(f"{path}-cert.pub", MAX_KEY).decode("utf-8", "replace"))
    return key


def _on_hardware(data: bytes) -> bool:
    """Is this an `sk-` key? Its public half stands readable at the head of the file, also where the rest is encrypted."""
    body = b"".join(data.split(b"-----")[2].split()) if data.count(b"-----") >= 4 else b""
    try:
        head = base64.b64decode(body[:800])
    except ValueError:
        return False
    return head.startswith(b"openssh-key-v1") and (b"sk-ssh-ed25519" in head or b"sk-ecdsa-sha2" in head)


def _public_blob(path: str) -> bytes:
    try:
        fields = ownfiles.read(path, MAX_KEY).decode("utf-8", "replace").split()
        return paramiko.pkey.PublicBlob.from_string(" ".join(fields[:2])).key_blob
    except (OSError, ValueError, IndexError):
        return b""


def _agent_keys(found: Identities, where: str = "") -> list[paramiko.PKey]:
    """The keys of the agent at this socket, or of the usual one."""
    path = where or os.environ.get("SSH_AUTH_SOCK")
    try:
        if not path or not ownfiles.exists(path):
            return []
    except ownfiles.TooSlow as exc:
        found.silent.append(f"the SSH agent's {exc}")
        return []

    def ask() -> list[Any]:
        agent: Any = _AgentAt(where) if where else paramiko.Agent()
        return [_SharedAgentKey(k.agent, k.blob, k.comment) for k in agent.get_keys()]

    try:
        keys = within(PATIENCE_S, ask)
    except TimeoutError:
        found.silent.append(f"the SSH agent does not answer within {PATIENCE_S:g} s")
        found.problems.append(found.silent[-1])
        return []
    except (OSError, paramiko.SSHException) as exc:
        found.problems.append(f"the SSH agent cannot be used: {exc}")
        return []
    found.hardware += [f"of the agent ({key.get_name()})" for key in keys if key.get_name().startswith("sk-")]
    return [key for key in keys if not key.get_name().startswith("sk-")]


class _AgentAt(paramiko.agent.AgentSSH):
    """The agent at a socket that the configuration names; paramiko's own knows the environment's only."""

    def __init__(self, path: str) -> None:
        super().__init__()
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.connect(path)
        self._connect(line)  # type: ignore[attr-defined]
