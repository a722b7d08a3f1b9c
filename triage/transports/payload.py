"""What is sent to a node: a constant boot command, then one payload on standard input, then request lines.

The boot command finds an interpreter and starts it with `-I -S -c "<boot>"`; the boot reads an eight-digit length, a
newline and that many bytes, and runs them. Standard input stays open: further lines are requests (look B, a costly
probe), its end means that the operator is gone (notes/prototype-findings.md 2.1). Nothing is installed or written.

Probes are loaded from the package `triage.probes` as text; their PROBE literal is read by `ast.literal_eval`. No
probe is ever executed on this side by loading it here.
"""

from __future__ import annotations

import ast
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from triage.errors import ConfigError, UsageError

INTERPRETERS = (
    "python3",
    "/usr/bin/python3",  # where the first is a shim of pyenv or conda that does not work here (no home, no /tmp to write to)
    "/usr/libexec/platform-python",
    *(f"python3.{minor}" for minor in range(13, 5, -1)),
    "python",
)
# One line, and no quotes: it stands between the double quotes of sh, inside the single quotes of the login shell
# (which may be csh or fish). Reads 9 bytes, then what they promise, from the raw descriptor: a buffered reader would
# swallow the requests behind the payload. The alarm ends a boot whose payload never comes; the payload sets its own.
BOOT = (
    "import os,signal;signal.alarm(90);b=bytearray();"
    "w=lambda n:all(iter(lambda:len(b)>=n or b.extend(os.read(0,n-len(b)) or os._exit(0)) or 2,True));"
    "w(9);w(9+int(b));exec(bytes(b[9:]))"
)
NO_PYTHON = "triage: no Python 3 on this node"
# `python` may be Python 2 and `python3` 3.4: the version is asked first (8 ms), since exec does not come back.
_PLAIN = (
    f"for p in {' '.join(INTERPRETERS)}; do "
    'command -v "$p" >/dev/null 2>&1 && '
    '"$p" -I -S -c "import sys;sys.exit(sys.version_info<(3,6))" </dev/null >/dev/null 2>&1 && '
    f'exec "$p" -I -S -c "{BOOT}"; '
    f'done; echo "{NO_PYTHON}"; exit 127'
)
# With `--sudo`: never a password is asked for. The interpreter is the first that is there, the system's own before others, by
# its full path (sudo looks in a PATH of its own). It is tried once only: each refusal is a line in the node's log, or a mail to
# its admin. A directory service that hangs would hold sudo, and us with it: hence the 5 s.
NO_SUDO = "triage: no sudo: "
SYSTEM_S = ("/usr/bin/python3", "/usr/libexec/platform-python")  # root shall not run a shim of somebody's home
SUDO = (
    't=; command -v timeout >/dev/null 2>&1 && t="timeout 5"; [ "$(id -u)" = 0 ] || '
    f"for p in {' '.join(dict.fromkeys((*SYSTEM_S, *INTERPRETERS)))}; do "
    'q=$(command -v "$p" 2>/dev/null) && [ -n "$q" ] && '
    '"$q" -I -S -c "import sys;sys.exit(sys.version_info<(3,6))" </dev/null >/dev/null 2>&1 || continue; '
    'm=$($t sudo -n "$q" -I -S -c "import os;os._exit(0)" 2>&1 </dev/null) && '
    f'exec sudo -n "$q" -I -S -c "{BOOT}"; '
    f'echo "{NO_SUDO}$m" | head -n 1; break; done; '
)
BEGIN = b'{"_begin"'  # how the first line of the payload starts; what comes before it is a banner or a .bashrc


@cache
def _files() -> dict[str, str]:
    """name -> source of every file of `triage.probes`, `_probe` included."""
    folder = resources.files("triage.probes")
    return {
        entry.name[:-3]: entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".py") and entry.name != "__init__.py"
    }


@cache
def carried_modules() -> dict[str, str]:
    """What travels beside the probes: pynvml (nvidia-ml-py) of this machine, never the node's copy.

    It is one file of pure Python for 2.7 to 3.13 (notes/gpu-health.md 1); nvidia-ml-py3 of 2017 calls itself pynvml as well, so
    the node's may be anything.
    """
    import pynvml

    return {"pynvml": Path(pynvml.__file__).read_text(encoding="utf-8")}


_DOCSTRING = re.compile(r'^( *)r?""".*?"""[ ]*$', re.M | re.S)
_COMMENT = re.compile(r"^[ ]*#.*$", re.M)


def lean(source: str) -> str:
    """The source without docstrings and comments of whole lines, a third of its size; every line keeps its number.

    By two quick patterns and no parser (that would cost 0.3 s a run): a test compiles what ships both ways and compares.
    """
    without = _DOCSTRING.sub(lambda m: m.group(1) + "0" + "\n" * m.group(0).count("\n"), source)
    return _COMMENT.sub("", without)


def literal(raw: bytes) -> bytes:
    """These bytes as a literal of a Latin-1 source: 4 % longer, where base64 is 33 % longer."""
    for plain, escaped in ((b"\\", b"\\\\"), (b"'", b"\\'"), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\0", b"\\x00")):
        raw = raw.replace(plain, escaped)
    return b"'" + raw + b"'"


def probe_sources() -> dict[str, str]:
    """name -> source of every probe (files with a leading underscore are no probes)."""
    return {name: text for name, text in _files().items() if not name.startswith("_")}


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    return {name: read_literal(name, source) for name, source in probe_sources().items()}


def probe_catalogue() -> dict[str, dict[str, Any]]:
    """name -> PROBE literal of every probe that ships, read without running it. ConfigError names a broken file."""
    return dict(_catalogue())


def read_literal(name: str, source: str) -> dict[str, Any]:
    """The PROBE literal of one probe source."""
    try:
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "PROBE" for t in node.targets):
                probe = ast.literal_eval(node.value)
                if isinstance(probe, dict) and probe.get("name") == name:
                    return probe
                raise ConfigError(f"probe {name}: PROBE must be a literal map whose name is {name!r}")
    except (SyntaxError, ValueError) as exc:
        raise ConfigError(f"probe {name}: {exc}") from exc
    raise ConfigError(f"probe {name}: has no PROBE literal")


def build(
    names: Iterable[str] | None = None,
    *,
    deadline_s: float = 90.0,
    extra: Mapping[str, str] | None = None,
    modules: Mapping[str, str] | None = None,
    **settings: Any,
) -> bytes:
    """The payload: length line and script.

    names      probes to send; None = all
    deadline_s after which the far side ends by itself: a cut cable sends no end of input
    extra      name -> source of probes that do not ship (tests, an operator's own)
    modules    name -> source of what probes may import (pynvml)
    settings   the runner's other settings, see DEFAULTS in probes/_probe.py
    """
    sources = {**probe_sources(), **(extra or {})}
    chosen = sorted(sources) if names is None else sorted(names)
    missing = [name for name in chosen if name not in sources]
    if missing:
        raise UsageError(f"no probe is called {missing[0]!r}; there are: {', '.join(sorted(sources))}")
    literals = {n: _literal(n, sources[n], extra or {}) for n in chosen}
    shared = {name: text for name, text in _files().items() if name.startswith("_")}
    needed = {name for told in literals.values() for name in told.get("needs", ())}
    carried = {name: text for name, text in carried_modules().items() if name in needed} if needed else {}
    config = {
        "deadline_s": deadline_s,
        "modules": {name: lean(text) for name, text in {**shared, **carried, **(modules or {})}.items()},
        "probes": {name: lean(sources[name]) for name in chosen},
        "meta": {
            name: {"version": told.get("version", 1), "timeout_s": told.get("timeout_s", 3)}
            for name, told in literals.items()
        },
        **settings,
    }
    packed = zlib.compress(json.dumps(config).encode("ascii"), 9)
    script = (
        b"# coding: latin-1\n"
        b"import json,sys,types,zlib\n"
        b"c=json.loads(zlib.decompress(" + literal(packed) + b".encode('latin-1')).decode('ascii'))\n"
        b"m=sys.modules['_probe']=types.ModuleType('_probe')\n"
        b"exec(compile(c['modules']['_probe'],'_probe.py','exec'),m.__dict__)\n"
        b"m.serve(c)\n"
    )
    return b"%08d\n" % len(script) + script


def _literal(name: str, source: str, extra: Mapping[str, str]) -> dict[str, Any]:
    return read_literal(name, source) if name in extra else _catalogue()[name]


def command(sudo: bool = False) -> str:
    """The boot command: one string for a login shell, which may be csh or fish."""
    return f"exec /bin/sh -c '{SUDO if sudo else ''}{_PLAIN}'"


COMMAND = command()


def request(look: str, ident: int, probes: Mapping[str, Mapping[str, Any]], limit_s: float) -> bytes:
    """One request line. `ident` comes back on every answer: a late answer of an earlier look is known as such."""
    line = {"look": look, "id": ident, "probes": probes, "limit_s": round(limit_s, 3)}
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
