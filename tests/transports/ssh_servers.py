"""SSH servers to test against: one that runs commands, and nine that misbehave (notes/fanout-and-schedulers.md 1.4).

Run as a script it serves commands until its standard input ends, and prints its port and host key first.
"""

import io
import os
import socket
import subprocess
import sys
import threading
import time

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def private_key(password=None):
    """The text of a new ed25519 key file; paramiko reads such keys but makes none."""
    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, how).decode()


def host_key():
    return paramiko.Ed25519Key(file_obj=io.StringIO(private_key()))


class Behaviour(paramiko.ServerInterface):
    """A server that does all that it is asked, or hangs for ever in one step of it."""

    def __init__(self, hangs_in, release, env=None, shell=("/bin/sh", "-c")):
        self.hangs_in, self.release, self.env, self.shell = hangs_in, release, env, shell
        self.user = ""

    def _maybe_hang(self, step):
        if step == self.hangs_in:
            self.release.wait()

    def get_allowed_auths(self, username):
        return "publickey"

    def check_auth_publickey(self, username, key):
        self._maybe_hang("auth")
        return paramiko.AUTH_FAILED if self.hangs_in == "refuse" else paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind, chanid):
        self._maybe_hang("channel")
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        self._maybe_hang("exec")
        target = {"output": self._silent, "endless": self._endless}.get(self.hangs_in, self._really)
        threading.Thread(target=target, args=(channel, command.decode()), daemon=True).start()
        return True

    def _silent(self, channel, command):
        self.release.wait()

    def _endless(self, channel, command):
        try:
            while not self.release.is_set():
                channel.sendall(b"y" * 4000)
                time.sleep(0.02)
        except OSError:
            pass

    def _really(self, channel, command):
        """Run the command: standard input follows the channel, the channel ends with the command."""
        child = subprocess.Popen(
            [*self.shell, command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            start_new_session=True,
        )

        def feed():
            while True:
                data = channel.recv(65536)
                if not data:
                    break
                try:
                    child.stdin.write(data)
                    child.stdin.flush()
                except OSError:
                    break
            try:
                child.stdin.close()
            except OSError:
                pass

        def tell(source, send):
            try:
                while True:
                    data = os.read(source.fileno(), 65536)
                    if not data:
                        break
                    send(data)
            except OSError:
                pass

        threading.Thread(target=feed, daemon=True).start()
        errors = threading.Thread(target=tell, args=(child.stderr, channel.sendall_stderr), daemon=True)
        errors.start()
        tell(child.stdout, channel.sendall)
        errors.join()
        try:
            channel.send_exit_status(child.wait())
            channel.close()
        except OSError:
            pass


class Server:
    """Listens on a free port of loopback until `stop`."""

    def __init__(self, hangs_in="", key=None, env=None):
        self.release = threading.Event()
        self.hangs_in, self.env, self.shell = hangs_in, env, ("/bin/sh", "-c")
        self.key = key or host_key()
        self.held = []
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        if hangs_in == "tcp":
            # A queue of one that is full: the kernel drops what else knocks, as a dead machine would.
            self.socket.listen(0)
            for _ in range(4):
                knocking = socket.socket()
                knocking.setblocking(False)
                knocking.connect_ex(("127.0.0.1", self.port))
                self.held.append(knocking)
            return
        self.socket.listen(200)
        threading.Thread(target=self._accept, daemon=True).start()

    def known_hosts_line(self):
        return f"[127.0.0.1]:{self.port} {self.key.get_name()} {self.key.get_base64()}\n"

    def stop(self):
        self.release.set()
        self.socket.close()
        for thing in self.held:
            thing.close()

    def _accept(self):
        while True:
            try:
                sock, _ = self.socket.accept()
            except OSError:
                return
            self.held.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        try:
            self._talk(sock)
        except (OSError, EOFError, paramiko.SSHException):
            pass

    def _talk(self, sock):
        if self.hangs_in == "silent":
            self.release.wait()
        elif self.hangs_in == "pre-banner lines":
            while not self.release.wait(0.05):
                sock.sendall(b"please wait\r\n")
        elif self.hangs_in == "pre-banner flood":
            while not self.release.is_set():
                sock.sendall(b"x" * 65536)
        elif self.hangs_in == "kex":
            sock.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
            self.release.wait()
        elif self.hangs_in == "closes":
            sock.close()
        else:
            transport = paramiko.Transport(sock)
            transport.add_server_key(self.key)
            self.held.append(transport)
            transport.start_server(server=Behaviour(self.hangs_in, self.release, self.env, self.shell))


def main():
    server = Server()
    print(server.known_hosts_line(), end="", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
