"""The command as a subprocess of this machine: `--transport local`, and the plainest thing to test against.

Options: `env` (a map added to the command's environment, e.g. TRIAGE_PROCFS).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from triage.model import Node
from triage.transports.base import Contact
from triage.transports.child import ChildSession, start


class LocalTransport:
    """Starts the command here, whatever the node's address says."""

    name = "local"

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = {**os.environ, **env}

    def open(self, node: Node, command: str, deadline: float, contact: Contact) -> ChildSession:
        contact.enter("exec")
        session = start(node, ["/bin/sh", "-c", command], contact, self._env)
        contact.enter("read")
        return session

    def close(self) -> None:
        return None


def make(options: Mapping[str, Any]) -> LocalTransport:
    return LocalTransport({str(k): str(v) for k, v in dict(options.get("env") or {}).items()})
