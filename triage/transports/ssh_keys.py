"""The keys to log in with: named files, else the agent's and ~/.ssh/id_*. Each is loaded once and shared.

Loading an RSA key costs 110 to 500 ms of CPU (its primes are checked): once per node would be minutes for a thousand
nodes (notes/fanout-and-schedulers.md 1.3). An agent that hangs, or a home directory on a dead mount, is left alone
after 2 s; files are only touched by children (ownfiles.py).
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from triage import ownfiles
from triage.errors import ConfigError

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

    @classmethod
    def load(cls, files: Sequence[str], agent: bool = True) -> Identities:
        """Named files only if there are any; else the agent's keys and the usual files. ConfigError if none works."""
        found = cls()
        wanted = list(files) or [os.path.expanduser(p) for p in DEFAULT_FILES]
        ownfiles.ahead(read=wanted)  # all at once: one after the other would cost a dead home three times
        held = _agent_keys(found) if agent else []
        for path in wanted:
            try:
                key = _from_file(path, held)
            except FileNotFoundError:
                if files:
                    raise ConfigError(f"SSH key {path}: no such file") from None
            except ownfiles.TooSlow as exc:
                found.silent += [] if exc.below else [f"SSH key {exc}"]
                found.problems.append(f"SSH key {exc}")
            except ConfigError as exc:
                if files:
                    raise
                found.problems.append(str(exc))
            else:
                found.keys.append(key)
        if not files:
            found.keys = [*held, *found.keys]
        if not found.keys:
            why = f": {found.problems[0]}" if found.problems else ""
            raise ConfigError(f"no SSH key to log in with{why}. Name one under `ssh: key:`, or ssh-add it to an agent")
        names = ", ".join(files) if files else f"{len(found.keys)} keys of the agent and ~/.ssh"
        found.words = f"key {names}" if files else names
        return found


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
    except (FileNotFoundError, ownfiles.TooSlow):
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


def _public_blob(path: str) -> bytes:
    try:
        fields = ownfiles.read(path, MAX_KEY).decode("utf-8", "replace").split()
        return paramiko.pkey.PublicBlob.from_string(" ".join(fields[:2])).key_blob
    except (OSError, ValueError, IndexError):
        return b""


def _agent_keys(found: Identities) -> list[paramiko.PKey]:
    socket = os.environ.get("SSH_AUTH_SOCK")
    try:
        if not socket or not ownfiles.exists(socket):
            return []
    except ownfiles.TooSlow as exc:
        found.silent.append(f"the SSH agent's {exc}")
        return []

    def ask() -> list[Any]:
        return [_SharedAgentKey(k.agent, k.blob, k.comment) for k in paramiko.Agent().get_keys()]

    try:
        return within(PATIENCE_S, ask)
    except TimeoutError:
        found.silent.append(f"the SSH agent does not answer within {PATIENCE_S:g} s")
        found.problems.append(found.silent[-1])
    except (OSError, paramiko.SSHException) as exc:
        found.problems.append(f"the SSH agent cannot be used: {exc}")
    return []
