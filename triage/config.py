"""Where every setting comes from: flag > TRIAGE_* environment > user file > /etc/triage > built-in.

Never a file of the current folder: at 2 AM people stand in strange folders, and such a file could name a key or a
playbook (DESIGN section 10). A file that does not answer (shared home on dead storage) is skipped and said so.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triage import ownfiles
from triage.errors import ConfigError

# name -> what it is; all are text, "" = unset.
SETTINGS: Mapping[str, str] = {
    "inventory": "file that says which nodes a job has",
    "scheduler": "who knows the job: slurm or inventory; else whoever is here and knows such ids",
    "profile": "file with this site's costs and thresholds",
    "transport": "how to reach the nodes: ssh, openssh, srun or local",
    "user": "user name on the nodes",
    "key": "private key file",
    "known_hosts": "known_hosts file",
    "ssh_config": "ssh_config file instead of yours and the system's; none = read none",
    "cluster": "name of the cluster, for the deduplication key",
    "state_dir": "folder of the saved cases",
}
BUILT_IN: Mapping[str, str] = {"transport": "ssh"}


@dataclass(frozen=True)
class Setting:
    value: str
    origin: str  # "--inventory", "TRIAGE_INVENTORY", a file's path, "built-in"


@dataclass(frozen=True)
class Config:
    settings: Mapping[str, Setting]
    warnings: tuple[str, ...] = field(default_factory=tuple)

    def value(self, name: str) -> str:
        return self.settings[name].value

    def origin(self, name: str) -> str:
        return self.settings[name].origin


def files(environ: Mapping[str, str]) -> list[Path]:
    """The configuration files, strongest first."""
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or "/root", ".config")
    return [Path(home, "triage", "config.yaml"), Path("/etc/triage/config.yaml")]


def state_dir(environ: Mapping[str, str]) -> str:
    home = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME") or "/root", ".local", "state")
    return os.path.join(home, "triage")


def begin(flags: Mapping[str, str | None], environ: Mapping[str, str] = os.environ, *more: str) -> str:
    """Begin to touch all that a run may need, as far as flags, environment and custom name it: the home, which it returns.

    Each may lie on other storage that stands still; one after the other they would cost the first 5 s of a run. A command
    calls this before its heavy imports; `load` calls it for those who did not.
    """
    said = {name: flags.get(name) or environ.get(f"TRIAGE_{name.upper()}") or "" for name in SETTINGS}
    path = {name: os.path.expanduser(value) for name, value in said.items()}
    home = environ.get("HOME") or os.path.expanduser("~")
    ownfiles.ahead(
        read=[*map(str, files(environ)), path["inventory"], path["profile"]],
        there=[home, said["state_dir"] or state_dir(environ), path["key"], path["known_hosts"], *more],
    )
    return home


def load(flags: Mapping[str, str | None], environ: Mapping[str, str] = os.environ) -> Config:
    """Every setting with its origin. `flags` holds what the command line said; None or "" = not said."""
    warnings: list[str] = []
    layers: list[tuple[str, Mapping[str, str]]] = []
    home = begin(flags, environ)
    try:
        ownfiles.exists(home)
    except ownfiles.TooSlow as error:
        warnings.append(f"{error}: shared storage may be stuck; going on without what lies in it")
    for path in files(environ):
        try:
            text = ownfiles.read(str(path), limit=1 << 20).decode("utf-8", "replace")
        except ownfiles.TooSlow as error:
            if not error.below:
                warnings.append(f"{error}: shared storage may be stuck; going on without it")
            continue
        except OSError:
            continue
        layers.append((str(path), _parse(text, str(path))))
    settings: dict[str, Setting] = {}
    for name in SETTINGS:
        candidates = [(f"--{name.replace('_', '-')}", flags.get(name)), (f"TRIAGE_{name.upper()}", environ.get(f"TRIAGE_{name.upper()}"))]  # fmt: skip
        candidates += [(origin, values.get(name)) for origin, values in layers]
        candidates.append(("built-in", BUILT_IN.get(name, state_dir(environ) if name == "state_dir" else "")))
        settings[name] = next(Setting(value, origin) for origin, value in candidates if value or origin == "built-in")  # type: ignore[arg-type]
    return Config(settings, tuple(warnings))


def _parse(text: str, origin: str) -> dict[str, str]:
    from triage.readers.strict_yaml import read_yaml  # PyYAML is heavy: only when there is a file

    try:
        document: Any = read_yaml(text) or {}
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}; mend it or move it away") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{origin}: expected `name: value` lines")
    for key, value in document.items():
        if key not in SETTINGS:
            near = difflib.get_close_matches(str(key), SETTINGS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(SETTINGS)}"
            raise ConfigError(f"{origin}: {str(key)[:40]!r} is not a setting; {hint}")
        if not isinstance(value, str | int | float):
            raise ConfigError(f"{origin}: {key} must be a text")
    return {str(key): str(value) for key, value in document.items()}
