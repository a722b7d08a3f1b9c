"""What NCCL's configuration file sets for a rank, beside its environment. Shared by the ranks probe and whoever reads it.

    /etc/nccl.conf      "NCCL_IB_TIMEOUT=22"      one variable a line; a line that begins with # is none

NCCL reads $NCCL_CONF_FILE, or ~/.nccl.conf where that is unset, then /etc/nccl.conf, and sets only what is not set yet: the
environment wins, then the first file, and in a file the first line (NVIDIA/nccl src/misc/param.cc). A container has a file of
its own, so it is read under /proc/<pid>/root.
Only below /etc is read: a home may be on a mount that does not answer, and this is asked of every node.
Fooled by   ~/.nccl.conf, an NCCL_CONF_FILE elsewhere, and a link in the file's place (followed from here, an absolute one
            would lead out of the container): none of them is read; a file changed since the rank began.
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import os
import stat

MOST_BYTES = 65536
DEFAULT = "/etc/nccl.conf"


def settings(text, names):
    """{name: value} of a configuration file's text, of these names only; the first line of a name wins."""
    found = {}
    for line in text.splitlines():
        name, mark, value = line.partition("=")
        if mark and not line.startswith("#") and name in names and name not in found:
            found[name] = "".join(c if c.isprintable() else " " for c in value[:256])
    return found


def files(env):
    """The files that are read for this environment, first wins; and the one that is not, or None."""
    named = env.get("NCCL_CONF_FILE") or ""
    if not named:
        return [DEFAULT], None
    inside = named.startswith("/etc/") and ".." not in named.split("/")
    return ([named, DEFAULT], None) if inside else ([DEFAULT], named)


def read(ctx, pid, env, names):
    """{name: value} that the files add to this rank's environment, of these names only."""
    found = {}
    for path in files(env)[0]:
        for name, value in settings(text_of(ctx, ctx.proc("%d/root%s" % (pid, path))), names).items():
            found.setdefault(name, value)
    return {name: value for name, value in found.items() if name not in env}


def text_of(ctx, path):
    """The text of a plain file; "" of what is none, or may not be read."""
    try:
        plain = stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return ""
    return (ctx.read(path, MOST_BYTES) or "") if plain else ""
