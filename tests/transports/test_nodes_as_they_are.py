"""Login shells, noise, Pythons, file systems and sudo of nodes as they are: it works, or the node's record says why not."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import ssh_servers

from triage.gather import Fleet
from triage.model import Node
from triage.transports import payload, ssh
from triage.unread import unread

PROBE = """
PROBE = {"name": "quick", "version": 1, "timeout_s": 5.0, "cost": "cheap", "needs": [], "fields": {}}
import os, sys
def collect(ctx): return {"sees": ctx.look, "python": sys.version.split()[0], "executable": sys.executable, "uid": os.geteuid()}
"""
LOAD = payload.build(["quick"], extra={"quick": PROBE}, nice=0)
LONG = ":".join(f"/opt/spack/linux-zen2/gcc-12.2.0/package-{i:04}/bin" for i in range(340))


@pytest.fixture
def login(tmp_path):
    """login(argv, env) -> (contact, answer) of a node whose sshd starts commands by that login shell."""
    servers = []

    def run(shell=("/bin/sh", "-c"), env=None, command=payload.COMMAND):
        server = ssh_servers.Server(env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **(env or {})})
        server.shell = list(shell)
        servers.append(server)
        (tmp_path / "key").write_text(ssh_servers.private_key())
        (tmp_path / "known_hosts").write_text(server.known_hosts_line())
        options = {"key": tmp_path / "key", "known_hosts": tmp_path / "known_hosts", "user": "oncall", "config": "none"}
        fleet = Fleet([Node("n1", address="127.0.0.1", port=server.port)], ssh.make(options), LOAD, command=command)
        (contact,) = fleet.open(8.0)
        (answer,) = fleet.look("A", {"quick": {}}, 6.0)
        fleet.close()
        return contact, answer

    yield run
    for server in servers:
        server.stop()


@pytest.mark.parametrize("sudo", [False, True])
@pytest.mark.parametrize("shell", ["bash", "dash", "fish", "csh", "tcsh"])
def test_whatever_the_login_shell_is_the_probes_run(login, shell, sudo):
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}")
    argv = [shutil.which(shell), "-c"]
    contact, answer = login(argv, command=payload.command(sudo))
    assert (contact.status, answer.data.get("sees")) == ("ok", "A"), contact


@pytest.mark.parametrize("shell", ["sh", "fish", "csh"])
def test_a_path_of_16_kilobytes_is_searched_to_its_end(login, shell):
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}")
    assert len(LONG) > 15_000
    contact, answer = login([shutil.which(shell), "-c"], {"PATH": f"{LONG}:{os.environ['PATH']}"})
    assert (contact.status, answer.data.get("sees")) == ("ok", "A"), contact


def test_a_banner_and_a_noisy_bashrc_are_no_answers(login, tmp_path):
    (tmp_path / "rc").write_text(
        'echo "*** Authorized use only ***"; echo "module: command not found" >&2; printf "\\033[31mno newline"\n'
        'for i in 1 2 3 4 5 6; do echo "{\\"_done\\":\\"A\\",\\"id\\":$i}"; done\n'
    )
    contact, answer = login(["/bin/sh", "-c", '. "$HOME/rc"; eval "$1"', "sh"])
    assert (contact.status, answer.data["sees"]) == ("ok", "A")
    assert "Authorized use only" not in str(answer)


def test_a_shell_that_reads_our_input_before_us_is_said_in_words(login):
    contact, _ = login(["/bin/sh", "-c", 'echo "Choose a project:"; head -c 1000 >/dev/null; eval "$1"', "sh"])
    assert contact.status != "ok"
    assert "Choose a project:" in contact.data["error"] + contact.data["banner"] + " ".join(contact.notes)


def bare(folder, *names):
    """A folder of programs that holds these only, beside what a shell needs."""
    folder.mkdir()
    for name in ("sh", "head", "id", "timeout"):
        os.symlink(shutil.which(name), folder / name)
    for name in names:
        (folder / name).write_text(f'#!/bin/sh\nexec {folder.parent}/interpreter "$@"\n')
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.fixture
def hidden(tmp_path):
    """A login shell for which the system's own Python is not there; it stands as `interpreter` in the folder of the test."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    (tmp_path / "interpreter").touch()
    old = sorted(Path("~/.pyenv/versions").expanduser().glob("3.6.*/bin/python3.6"))
    real = os.path.realpath(old[0] if old else sys._base_executable)
    mount = shutil.which("mount")
    hide = f"{mount} --bind {real} {tmp_path}/interpreter && "
    if os.path.exists("/usr/bin/python3"):
        hide += f"{mount} --bind /dev/null {os.path.realpath('/usr/bin/python3')} && "
    return [shutil.which("unshare"), "-m", "/bin/sh", "-c", hide + 'exec /bin/sh -c "$1"', "sh"]


def test_no_python_is_said_with_the_names_that_were_tried(login, tmp_path, hidden):
    contact, answer = login(hidden, {"PATH": bare(tmp_path / "bin")})
    assert (contact.status, contact.data["phase"]) == ("error", "read")
    assert "no Python 3 on this node" in contact.data["error"]
    assert "no Python 3 on this node" in answer.notes[0]


@pytest.mark.parametrize("name", ["python3.6", "python3.12", "python"])
def test_a_python_by_a_longer_name_is_found(login, tmp_path, hidden, name):
    contact, answer = login(hidden, {"PATH": bare(tmp_path / "bin", name)})
    assert (contact.status, answer.data.get("sees")) == ("ok", "A"), contact


def test_a_python_that_is_too_old_or_broken_is_passed_over(login, tmp_path, hidden):
    path = bare(tmp_path / "bin", "python3.9")
    for name, says in (("python3", "exit 1"), ("python3.13", "kill -SEGV $$")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{says}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    _, answer = login(hidden, {"PATH": path})
    assert answer.data["sees"] == "A"


def test_a_shim_that_needs_a_home_is_passed_over_for_the_systems_own(login, tmp_path):
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("needs /usr/bin/python3")
    path = bare(tmp_path / "bin", "python3")
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\necho pyenv: no such home >&2; exit 1\n")
    _, answer = login(env={"PATH": path})
    assert answer.data.get("sees") == "A"


def test_platform_python_alone_is_enough(login, tmp_path, hidden):
    # RHEL 8 without the python3 package: this one node has a /usr/libexec of its own.
    bare(tmp_path / "libexec", "platform-python")
    hidden[4] = f"{shutil.which('mount')} --bind {tmp_path}/libexec /usr/libexec && {hidden[4]}"
    contact, answer = login(hidden, {"PATH": bare(tmp_path / "bin")})
    assert (contact.status, answer.data.get("sees")) == ("ok", "A"), contact


def test_nothing_is_written_where_nothing_can_be_written_or_run(login):
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    closed = "for d in /tmp /var/tmp /dev/shm /run; do mount -t tmpfs -o ro,noexec none $d || exit 9; done; "
    contact, answer = login(
        ["unshare", "-m", "/bin/sh", "-c", closed + 'exec /bin/sh -c "$1"', "sh"], {"HOME": "/nowhere"}
    )
    assert (contact.status, answer.data.get("sees")) == ("ok", "A"), contact


# ---------------------------------------------------------------- sudo


def sudo(folder, script):
    folder.mkdir()
    (folder / "sudo").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "sudo").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


UNPRIVILEGED = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/bin/sh", "-c"]


@pytest.fixture
def nobody():
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv (util-linux), to be somebody else")
    if subprocess.run([*UNPRIVILEGED, "command -v python3"], capture_output=True).returncode:
        pytest.skip("nobody may not read Python here")
    return UNPRIVILEGED


@pytest.fixture
def open_folder():
    """A folder that nobody may read: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_a_sudo_that_lets_us_runs_the_payload_and_nothing_else_is_said(login, nobody, open_folder):
    env = sudo(
        open_folder / "bin", f'echo "$*" | head -c 60 >>{open_folder}/calls; [ "$1" = -n ] && shift && exec "$@"'
    )
    (open_folder / "calls").write_text("")
    (open_folder / "calls").chmod(0o666)
    contact, answer = login(nobody, env, payload.command(sudo=True))
    assert (contact.status, contact.notes, answer.data.get("sees")) == ("ok", (), "A"), contact
    assert (open_folder / "calls").read_text().count("-n ") == 2, "once to ask, once for the payload"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ('echo "sudo: a password is required" >&2; exit 1', "a password is required"),
        ('echo "sudo: sorry, you must have a tty to run sudo" >&2; exit 1', "you must have a tty"),
        ("exit 1", "it says nothing"),
    ],
)
def test_a_sudo_that_refuses_leaves_what_the_user_may_read_and_is_told(login, nobody, open_folder, script, says):
    contact, answer = login(nobody, sudo(open_folder / "bin", script), payload.command(sudo=True))
    assert (contact.status, answer.data["uid"]) == ("ok", 65534)
    assert contact.notes[0].startswith("sudo -n is refused: ") and says in contact.notes[0]
    (line,) = unread([contact, answer], sudo=True)
    assert line.startswith("n1: sudo -n is refused: ") and "stays unread" in line


def test_the_real_sudo_refuses_a_user_whom_nobody_allows_it(login, nobody):
    if not shutil.which("sudo"):
        pytest.skip("needs sudo")
    contact, answer = login(nobody, command=payload.command(sudo=True))
    assert (contact.status, answer.data["uid"]) == ("ok", 65534)
    assert contact.notes and contact.notes[0].startswith("sudo -n is refused: ")


def test_what_is_unread_for_want_of_rights_is_told_once_for_all_nodes_that_are_alike():
    from triage.model import Sample

    samples = [
        Sample("kernel", node, "A", "denied", {}, notes=("the ring and the journal are closed",))
        for node in ("g1", "g2", "g3")
    ]
    samples += [Sample("ranks", "g3", "A", "ok", {}, notes=("may not read /proc/1/environ (and perhaps others)",))]
    samples += [Sample("nic", "g4", "A", "ok", {})]
    lines = unread(samples, sudo=False)
    assert lines == [
        "g[1-2]: not all could be read of the kernel log by this user; --sudo reads more, where sudo asks for no password",
        "g3: not all could be read of other users' processes, the kernel log by this user; --sudo reads more, where sudo asks "
        "for no password",
    ]
    assert all("--sudo" not in line for line in unread(samples, sudo=True))
