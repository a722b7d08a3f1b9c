"""paramiko's transport, tuned: which algorithms, how often it wakes, and no timer thread per connection.

The figures stand in notes/fanout-and-schedulers.md 1.1 to 1.3.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import paramiko

from triage.transports.base import left
from triage.transports.dial import Wire

_KEX = (
    "curve25519-sha256@libssh.org",
    "curve25519-sha256",
    "ecdh-sha2-nistp256",
    "ecdh-sha2-nistp384",
    "ecdh-sha2-nistp521",
    "mlkem768x25519-sha256",
)
_HOST_KEYS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}


_LIBSSH = "curve25519-sha256@libssh.org"
_KEX_CLASSES: dict[str, Any] = dict(getattr(paramiko.Transport, "_kex_info", {}))
if _LIBSSH in _KEX_CLASSES:
    # RFC 8731: the plain name means the same as libssh's, which is the only one that paramiko lists.
    _KEX_CLASSES["curve25519-sha256"] = _KEX_CLASSES[_LIBSSH]


class _Transport(paramiko.Transport):
    """paramiko's transport, tuned: cheap algorithms first, pure-Python Diffie-Hellman never (26 to 82 ms each)."""

    if _KEX_CLASSES:
        _kex_info = _KEX_CLASSES
    # Each transport wakes this often only to see whether it was closed; 0.1 s costs 0.28 core per 1,000 sessions. We close by
    # shutting the socket down, which wakes it at once.
    if hasattr(paramiko.Transport, "_active_check_timeout"):
        _active_check_timeout = 10.0


def exchange_keys(sock: Wire, types: Sequence[str], until: float) -> paramiko.Transport:
    """Start paramiko on a socket whose server has spoken."""
    done = threading.Event()
    transport = _Transport(sock)  # type: ignore[arg-type]
    _tune(transport, types)
    transport.start_client(event=done)
    if not done.wait(left(until)):
        raise TimeoutError("no end of the key exchange")
    if not transport.is_active():
        raise transport.get_exception() or EOFError()
    return transport


def _tune(transport: paramiko.Transport, types: Sequence[str]) -> None:
    """Order the algorithms by cost, and the host-key types by what known_hosts can check."""
    security = transport.get_security_options()
    security.kex = [k for k in _KEX if k in getattr(transport, "_kex_info", _KEX)]
    security.ciphers = sorted(security.ciphers, key=lambda c: not c.startswith("aes128-gcm"))
    wanted = [a for t in types for a in _HOST_KEYS.get(t, ())]
    security.key_types = [*wanted, *(k for k in security.key_types if k not in wanted)]
    if hasattr(transport.packetizer, "start_handshake"):
        # It starts a timer thread per connection; our watchdog already bounds the handshake.
        transport.packetizer.start_handshake = lambda timeout: None  # type: ignore[method-assign]
