"""Probes open for reading only, need nothing but the standard library, and are Python 3.6: read from their code.

A limit of file size stops bytes, but the empty file would still be made (notes/prototype-findings.md 2.2). One thing
may be written at all: a byte into the flight recorder's FIFO, by a descriptor opened O_WRONLY | O_NONBLOCK. Few files may
use the network at all: `peers` connects, listens to what comes, and sends nothing; those of SPEAKS send in one place each.
"""

import ast
import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "probes"
FILES = sorted(p for p in FOLDER.glob("*.py") if p.name != "__init__.py")
PROBES = [p for p in FILES if not p.name.startswith("_")]
SHARED = "_probe.py"  # the runner: it forks, kills its own children and makes itself small
TRAVELS = {"pynvml", *(p.stem for p in FILES if p.name.startswith("_") and p.name != SHARED)}  # in the payload

STANDARD_IN_3_6 = """
    array ast base64 binascii bisect bz2 calendar codecs collections contextlib copy ctypes datetime errno
    fcntl fnmatch functools gc glob gzip hashlib heapq hmac importlib io ipaddress itertools json locale
    math operator os pathlib pickle pickletools platform posixpath pprint pwd grp queue random re resource
    select shlex signal socket stat statistics string struct subprocess sys tempfile textwrap threading time traceback
    types typing unicodedata uuid zlib
"""

# Calls by name, whoever they are called on: what makes, changes, removes or ends something.
FORBIDDEN_CALLS = """
    remove unlink mkdir makedirs mkfifo mknod rename renames replace_file rmdir removedirs link symlink
    truncate ftruncate chmod chown lchown fchmod fchown utime setxattr removexattr kill killpg
    pidfd_send_signal terminate send_signal system popen fork forkpty posix_spawn execv execve execvp
    execvpe execl execlp spawnv spawnl putenv write_text write_bytes touch rmtree copyfile copytree move
    sendfile copy_file_range pwrite pwritev writev setrlimit prlimit setpriority sched_setaffinity reboot
    sync mount umount
"""
FORBIDDEN = set(FORBIDDEN_CALLS.split())
NETWORK = {"socket", "ssl", "asyncio", "socketserver", "http", "urllib", "ftplib", "smtplib", "telnetlib", "xmlrpc"}
NETWORKED = "peers.py"
# Those that prove whose server it is, and ask it: one call of `send` in the file (`ras` has none: _ras.py holds its four lines).
SPEAKS = {"_control_plane.py", "ras.py"}
# Needs a socket for its number only: an ioctl on it tells a driver's statistics. It reaches nobody, and sends nothing.
IOCTL, IOCTL_NAMES = "_nic_ethtool.py", {"socket", "AF_INET", "SOCK_DGRAM"}
# Asks each GPU in a child of its own, and ends those that do not come back.
APART = "_apart.py"
# All that it may ask of the module and of a socket: enough to connect and to listen, not enough to say anything.
SOCKET_NAMES = {"socket", "getaddrinfo", "SOCK_STREAM", "AI_NUMERICHOST", "SOL_SOCKET", "SO_ERROR"}
PROVING_NAMES = {"AF_INET", "AF_INET6", "AF_UNIX", "SO_PEERCRED", "inet_ntop"}  # and what those need that speak
SENDING_CALLS = """
    send sendall sendto sendmsg sendmsg_afalg sendfile write writelines bind listen accept connect create_connection
    create_server makefile setsockopt shutdown fromfd socketpair
"""
SENDING = set(SENDING_CALLS.split())
POKE_FLAGS = {"O_WRONLY", "O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW"}
WRITING_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "O_TMPFILE", "O_EXCL"}


def calls(tree):
    """(call, name, receiver) of each call; `os.open` is ("open", "os"), `open` is ("open", "")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                receiver = node.func.value
                yield node, node.func.attr, getattr(receiver, "id", type(receiver).__name__)
            elif isinstance(node.func, ast.Name):
                yield node, node.func.id, ""


def mode_of(call):
    """The mode of an `open` call; None where it is no literal."""
    given = [k.value for k in call.keywords if k.arg == "mode"] or call.args[1:2]
    if not given:
        return "r"
    return given[0].value if isinstance(given[0], ast.Constant) and isinstance(given[0].value, str) else None


def flags_of(call):
    return {n.attr for n in ast.walk(call) if isinstance(n, ast.Attribute) and n.attr.startswith("O_")}


def sent(tree, name):
    """(where, what) of each thing that could send, serve, or hide what it does with a socket."""
    names, allowed = SOCKET_NAMES, []
    if name in SPEAKS:
        names = SOCKET_NAMES | PROVING_NAMES
        allowed = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "send"][:1]
    if name == IOCTL:
        names = IOCTL_NAMES
    for call, called, receiver in calls(tree):
        if call.func in allowed:
            continue
        reaches = name == IOCTL and called in ("connect_ex", "recv", "getaddrinfo")
        if called in SENDING or reaches or (called == "getattr" and receiver == ""):
            yield f"{name}:{call.lineno}", called
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if getattr(node.value, "id", "") == "socket" and node.attr not in names:
                yield f"{name}:{node.lineno}", f"socket.{node.attr}"
            elif node.attr in SENDING and node not in allowed:
                yield f"{name}:{node.lineno}", node.attr
        elif isinstance(node, ast.Import) and any(alias.name == "socket" and alias.asname for alias in node.names):
            yield f"{name}:{node.lineno}", "socket under another name"


def complaints(source, name):
    """What a probe's code does that a probe may not do."""
    tree = ast.parse(source)
    found = []
    may_poke = name == "flight_recorder.py"
    for call, called, receiver in calls(tree):
        where = f"{name}:{call.lineno}"
        if called in FORBIDDEN and not (name == APART and called in ("fork", "kill")):
            found.append(f"{where} calls {called}")
        if called == "open" and receiver in ("", "io", "gzip", "bz2", "codecs"):
            mode = mode_of(call)
            if mode is None or set(mode) - set("rbtU"):
                found.append(f"{where} opens with mode {mode!r}")
        elif called == "open" and receiver == "os":
            flags = flags_of(call)
            poke = may_poke and {"O_WRONLY", "O_NONBLOCK"} <= flags <= POKE_FLAGS
            if (flags & WRITING_FLAGS and not poke) or not flags:
                found.append(f"{where} os.open with {sorted(flags)}")
        elif called == "open":
            found.append(f"{where} opens through {receiver}")
        if called == "write" and receiver == "os" and not may_poke and name != APART:
            found.append(f"{where} writes to a descriptor")
        if called == "fdopen":
            found.append(f"{where} calls fdopen")
        if called in ("__import__", "eval", "exec", "compile") and receiver == "":
            found.append(f"{where} calls {called}")
        if called == "getattr" and getattr(call.args[0], "id", "") in ("os", "io", "shutil", "subprocess"):
            found.append(f"{where} reaches into {call.args[0].id}")
    if name in (NETWORKED, IOCTL) or name in SPEAKS:
        found += [f"{where} calls {called}" for where, called in sent(tree, name)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or "."]
            names = {alias.name for alias in node.names}
            if node.module in ("os", "io", "shutil") and names & (FORBIDDEN | {"open", "write", "fdopen", "*"}):
                found.append(f"{name}:{node.lineno} takes {sorted(names)} out of {node.module}")
        else:
            continue
        for module in modules:
            top = module.split(".")[0]
            if top == "_probe":
                continue
            free = name in (NETWORKED, IOCTL) or name in SPEAKS
            if top in NETWORK and (not free or module != "socket" or isinstance(node, ast.ImportFrom)):
                found.append(f"{name}:{node.lineno} imports {module}: few files use the network, through socket")
            if top not in {*STANDARD_IN_3_6.split(), *TRAVELS}:
                found.append(f"{name}:{node.lineno} imports {module}")
            if top in ("subprocess", "tempfile", "shutil"):
                found.append(f"{name}:{node.lineno} imports {module}: commands run through ctx.run, files are not made")
    return found


@pytest.mark.parametrize("path", PROBES, ids=lambda p: p.name)
def test_a_probe_only_reads(path):
    assert complaints(path.read_text(), path.name) == []


@pytest.mark.parametrize(
    "code",
    [
        "open('/tmp/x', 'w')",
        "open('/tmp/x', mode='a')",
        "open('/tmp/x', 'r+')",
        "open('/tmp/x', how)",
        "io.open('/tmp/x', 'wb')",
        "pathlib.Path('/tmp/x').open('w')",
        "pathlib.Path('/tmp/x').write_text('x')",
        "os.open('/tmp/x', os.O_WRONLY | os.O_CREAT)",
        "os.open('/tmp/x', os.O_WRONLY | os.O_NONBLOCK)",
        "os.open('/tmp/x', 65)",
        "os.remove('/tmp/x')",
        "os.kill(1, 9)",
        "os.write(3, b'x')",
        "getattr(os, 'un' + 'link')('/tmp/x')",
        "import shutil",
        "import subprocess",
        "import requests",
        "from os import unlink",
        "exec('1')",
    ],
)
def test_the_check_sees_through(code):
    assert complaints(code, "probe.py")


@pytest.mark.parametrize(
    "code, name",
    [
        ("open('/proc/1/stat')", "probe.py"),
        ("open('/proc/1/stat', 'rb')", "probe.py"),
        ("os.open('/proc/1/stat', os.O_RDONLY | os.O_NONBLOCK)", "probe.py"),
        ("os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)", "flight_recorder.py"),
        ("'a'.replace('a', 'b')", "probe.py"),
    ],
)
def test_the_check_lets_reading_and_the_poke_pass(code, name):
    assert complaints(code, name) == []


@pytest.mark.parametrize(
    "code, name",
    [
        ("import socket", "probe.py"),
        ("from socket import socket", "probe.py"),
        ("import socket", "_helper.py"),
        ("import http.client", "peers.py"),
        ("import asyncio", "peers.py"),
        ("from socket import create_connection", "peers.py"),
        ("import socket as s", "peers.py"),
        ("import socket\nsocket.create_connection(x)", "peers.py"),
        ("import socket\nsocket.gethostbyname(x)", "peers.py"),
        ("sock.send(b'x')", "peers.py"),
        ("sock.sendall(b'x')", "peers.py"),
        ("tell = sock.sendto", "peers.py"),
        ("sock.connect(x)", "peers.py"),
        ("sock.bind(x)", "peers.py"),
        ("getattr(sock, 'se' + 'nd')(b'x')", "peers.py"),
        ("sock.send(b'x')\nsock.send(b'y')", "_control_plane.py"),
        ("sock.sendall(b'x')", "_control_plane.py"),
        ("sock.connect(x)", "_control_plane.py"),
        ("import socket\nsocket.create_connection(x)", "_control_plane.py"),
        ("import http.client", "_control_plane.py"),
    ],
)
def test_nothing_is_sent_to_anybody(code, name):
    assert complaints(code, name)


def test_connecting_and_listening_to_what_comes_is_allowed_in_one_probe():
    code = "import socket\ns = socket.socket(f, socket.SOCK_STREAM)\ns.connect_ex(x)\ns.recv(9)"
    assert complaints(code, "peers.py") == [] and complaints(code, "nic.py")


def test_a_question_may_be_sent_in_one_place_of_the_files_that_prove_whom_they_ask():
    code = "import socket\ns = socket.socket(socket.AF_UNIX, f)\ns.send(b'x')"
    assert complaints(code, "_control_plane.py") == [] and complaints(code, "peers.py")


@pytest.mark.parametrize(
    "code",
    [
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
        "import socket\ns = socket.create_connection(x)",
        "sock.connect_ex(x)",
        "sock.send(b'x')",
        "sock.recv(9)",
    ],
)
def test_who_asks_a_driver_through_a_socket_reaches_nobody(code):
    assert complaints(code, IOCTL)


def test_a_driver_is_asked_for_nothing_but_how_many_statistics_what_they_are_called_and_what_they_are():
    tree = ast.parse((FOLDER / IOCTL).read_text())
    numbers = {
        target.id: ast.literal_eval(value)
        for node in tree.body
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call)
        for target, value in zip(
            getattr(node.targets[0], "elts", node.targets), getattr(node.value, "elts", [node.value])
        )
    }
    # linux/ethtool.h and linux/sockios.h: ETHTOOL_GDRVINFO, ETHTOOL_GSTRINGS, ETHTOOL_GSTATS; SIOCETHTOOL
    assert {numbers[name] for name in ("GDRVINFO", "GSTRINGS", "GSTATS")} == {0x3, 0x1B, 0x1D}
    assert numbers["SIOCETHTOOL"] == 0x8946
    asked = [ast.unparse(call.args[2]) for call, called, receiver in calls(tree) if called == "ask" and receiver == ""]
    assert sorted(asked) == ["GDRVINFO", "GSTATS", "GSTRINGS"]
    ioctls = [ast.unparse(call.args[1]) for call, called, _ in calls(tree) if called == "ioctl"]
    assert ioctls == ["SIOCETHTOOL"]


def test_no_other_file_of_the_probes_makes_an_ioctl():
    assert [p.name for p in FILES if any(called == "ioctl" for _, called, _ in calls(ast.parse(p.read_text())))] == [
        IOCTL
    ]


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.name.startswith("_") and p.name != SHARED], ids=lambda p: p.name
)
def test_what_probes_share_only_reads_too(path):
    assert complaints(path.read_text(), path.name) == []


def test_children_that_ask_apart_are_the_only_processes_that_are_ended_by_them():
    tree = ast.parse((FOLDER / APART).read_text())
    assert [ast.unparse(call) for call, called, _ in calls(tree) if called == "kill"] == [
        "os.kill(one.pid, signal.SIGKILL)"
    ]
    assert [ast.unparse(call) for call, called, _ in calls(tree) if called == "fork"] == ["os.fork()"]
    assert complaints("import os\nos.kill(1, 9)", "gpu.py") and complaints("import os\nos.fork()", "gpu.py")


def test_a_gpu_is_only_ever_asked_and_nothing_of_it_is_set_cleared_or_reset():
    """Every function of NVML that is named in the probes' code (notes/gpu-health.md 1.2)."""
    named = set()
    for path in FILES:
        named.update(re.findall(r"\bnvml[A-Z]\w*", path.read_text()))
    allowed = r"nvml(Init|NVMLError|Lib|SystemGetDriverVersion|DeviceGet|DeviceGet[A-Z]\w*|Gpm(QueryDeviceSupport|SampleAlloc|SampleGet|MetricsGet))\Z"
    assert "nvmlDeviceGetHandleByPciBusId" in named
    assert [name for name in sorted(named) if not re.match(allowed, name)] == ["nvmlReturn"]


def test_the_shared_runner_writes_one_file_of_its_own_process_and_nothing_else():
    tree = ast.parse((FOLDER / SHARED).read_text())
    opened = []
    for call, called, receiver in calls(tree):
        if called == "open" and receiver in ("", "os"):
            target = ast.unparse(call.args[0])
            writes = set(mode_of(call) or "?") - set("rbt") if receiver == "" else flags_of(call) & WRITING_FLAGS
            if writes:
                opened.append((target, "".join(sorted(writes))))
        assert called not in (FORBIDDEN - {"kill", "killpg", "fork", "setrlimit"}), f"line {call.lineno}: {called}"
    assert sorted(opened) == [("'/proc/self/oom_score_adj'", "w"), ("os.devnull", "O_RDWR")]


def test_the_shared_runner_kills_only_children_of_its_own():
    tree = ast.parse((FOLDER / SHARED).read_text())
    killers = {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for _, called, _ in calls(function)
        if called in ("kill", "killpg") and function.name not in ("finish", "settle", "keep_deadlines")
    }
    # `kill` gets a Child, `sweep` what the kernel lists as our children, `run` and a Stream the command that they started.
    assert killers == {"kill", "sweep", "run", "__iter__"}


@pytest.mark.parametrize("path", PROBES, ids=lambda p: p.name)
def test_a_probe_file_has_the_shape_of_a_probe(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "the question it answers, a sample of its input, what fools it"
    literal = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "PROBE"
    )
    assert literal["name"] == path.stem
    assert {"name", "version", "needs", "timeout_s", "cost", "fields"} <= set(literal)
    assert literal["cost"] in ("cheap", "slow", "intrusive") and literal["fields"]
    collect = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "collect")
    assert [a.arg for a in collect.args.args] == ["ctx"]
    top = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    assert not any("_probe" in ast.unparse(n) for n in top), "operator code imports this file without _probe beside it"


def pythons():
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found = {sys.version_info.minor: sys.executable}
    for minor in range(6, 15):
        places = sorted(glob.glob(f"{root}/versions/3.{minor}.*/bin/python3"))
        places += [p for p in [shutil.which(f"python3.{minor}")] if p and "shims" not in p]
        if places:
            found[minor] = places[0]
    return found


@pytest.mark.parametrize("minor", range(6, 14))
def test_all_of_it_compiles_under_each_python_from_3_6_on(minor):
    python = pythons().get(minor)
    if not python:
        pytest.skip(f"no Python 3.{minor} here (pyenv install 3.{minor})")
    code = (
        "import io, sys\nfor f in sys.argv[1:]:\n with io.open(f, encoding='utf-8') as s: compile(s.read(), f, 'exec')"
    )
    done = subprocess.run([python, "-W", "error", "-c", code, *map(str, FILES)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
