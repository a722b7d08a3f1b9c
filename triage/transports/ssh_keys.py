"""The keys to log in with: named files, else the agent's and ~/.ssh/id_*. Each is loaded once and shared.

Loading an RSA key costs 110 to 500 ms of CPU (its primes are checked): once per node would be minutes for a thousand
nodes (notes/fanout-and-schedulers.md 1.3). An agent that hangs, or a home directory on a dead mount, is left alone
after 2 s.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import paramiko

from triage.errors import ConfigError

T = TypeVar("T")

PATIENCE_S = 2.0
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
    words: str = "no key"  # "key ~/.ssh/id_ed25519", "2 keys of the agent": for the message of a refused login

    @classmethod
    def load(cls, files: Sequence[str], agent: bool = True) -> Identities:
        """Named files only if there are any; else the agent's keys and the usual files. ConfigError if none works."""
        found = cls()
        held = _agent_keys(found.problems) if agent else []
        for path in files or [os.path.expanduser(p) for p in DEFAULT_FILES]:
            try:
                key = within(PATIENCE_S, lambda path=path: _from_file(path, held))  # type: ignore[misc]
            except FileNotFoundError:
                if files:
                    raise ConfigError(f"SSH key {path}: no such file") from None
            except TimeoutError:
                found.problems.append(f"SSH key {path}: not read within {PATIENCE_S:g} s; is its file system stuck?")
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
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
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


def _public_blob(path: str) -> bytes:
    try:
        fields = Path(path).read_text(encoding="utf-8", errors="replace").split()
        return paramiko.pkey.PublicBlob.from_string(" ".join(fields[:2])).key_blob
    except (OSError, ValueError, IndexError):
        return b""


def _agent_keys(problems: list[str]) -> list[paramiko.PKey]:
    if not os.environ.get("SSH_AUTH_SOCK"):
        return []

    def ask() -> list[Any]:
        return [_SharedAgentKey(k.agent, k.blob, k.comment) for k in paramiko.Agent().get_keys()]

    try:
        return within(PATIENCE_S, ask)
    except TimeoutError:
        problems.append(f"the SSH agent does not answer within {PATIENCE_S:g} s; going on without it")
    except (OSError, paramiko.SSHException) as exc:
        problems.append(f"the SSH agent cannot be used: {exc}")
    return []
