"""How often does each TCP connection of this node send again, and to whom? Shared by the nic probe.

    parse(text)   ->   [["10.88.0.11:40212", "10.88.0.12:29600", 81234, 37, 5120], ...]
                       local, peer, segments sent, sent again, milliseconds it waited for the network

Reads    `ss -tinH state established`, two lines a connection (iproute2 of any age: -O is newer than many nodes):
         0  0  10.88.0.11:40212 10.88.0.12:29600
             cubic wscale:7,7 rto:204 ... segs_out:81234 ... busy:5140ms rwnd_limited:20ms(0.4%) ... retrans:0/37 ...
Only where the job's payload goes over sockets: of RDMA it says nothing. The node's own totals name no peer; these do.
Fooled by   connections of other programs (the busiest are told, whosever they are); another network namespace; a kernel that
            leaves `retrans` or `busy` out while it is 0 (then it is 0: the line itself was read); busy counts what the peer's
            program does not take as well, which is taken off again (rwnd_limited).
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import re

COMMAND = ["ss", "-tinH", "state", "established"]
MOST = 48
_FIELD = re.compile(r"\b(segs_out|retrans|busy|rwnd_limited):(?:\d{1,9}/)?(\d{1,18})(?:ms|\b)")
_ADDRESS = re.compile(r"[0-9A-Za-z.:%\[\]_*-]{3,80}$")


def parse(text):
    """The busiest connections that leave this node. A line without its details is no connection that we know."""
    found, ends = [], None
    for line in text.splitlines():
        if not line[:1].isspace():
            words = line.split()
            # With or without the column of states, the two addresses are the last plain words of the first line.
            ends = [w for w in words if ":" in w and _ADDRESS.match(w)][:2]
            if len(ends) == 2 and "segs_out:" in line:
                add(found, ends, line)
                ends = None
        elif ends is not None and len(ends) == 2:
            add(found, ends, line)
            ends = None
    found.sort(key=lambda row: -row[2])
    return found[:MOST]


def add(found, ends, line):
    told = dict(_FIELD.findall(line))
    local, peer = ends
    if "segs_out" in told and host(local) != host(peer) and not local.startswith(("127.", "[::1]")):
        waited = max(0, int(told.get("busy", 0)) - int(told.get("rwnd_limited", 0)))
        found.append([local, peer, int(told["segs_out"]), int(told.get("retrans", 0)), waited])


def host(end):
    """10.88.0.11 of "10.88.0.11%rail0:40212"; the IPv4 address of one that is mapped into IPv6."""
    name = end.rpartition(":")[0].strip("[]").partition("%")[0].lower()
    return name[7:] if name.startswith("::ffff:") and "." in name else name
