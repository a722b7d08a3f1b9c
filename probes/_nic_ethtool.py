"""Statistics of a network driver, as `ethtool -S` shows them, without ethtool: shared by the nic probe.

    statistics(["ens1f0np0"], left)   ->   {"ens1f0np0": {"rx_prio3_pause": 41, ...}}, ["ens2"]

Reads    ioctl SIOCETHTOOL with ETHTOOL_GDRVINFO (how many there are), ETHTOOL_GSTRINGS (their names) and
         ETHTOOL_GSTATS (their values): three that any user may ask, and that change nothing (linux net/ethtool/ioctl.c,
         dev_ethtool: "Allow some commands to be done by anyone"; structures in linux/ethtool.h)
Fooled by   a driver whose number of statistics changes between names and values (nothing is told then); a lock of the
            network core that somebody holds for ever: each device is asked in a thread that is given up on, and is named;
            a virtual function, which has no counters of the physical port.
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import array
import fcntl
import socket
import struct

if __package__:  # read as a part of triage (tests)
    from ._stuck import guarded
else:  # beside this file, or in the payload
    from _stuck import guarded

SIOCETHTOOL = 0x8946
GDRVINFO, GSTRINGS, GSTATS = 0x3, 0x1B, 0x1D
SET_STATS = 1  # ETH_SS_STATS
NAME = 32  # ETH_GSTRING_LEN
DRVINFO_BYTES, N_STATS_AT = 196, 180  # struct ethtool_drvinfo, and where n_stats stands in it
MOST = 12000  # statistics of one device: a card of 128 channels has some 9,000
SLACK = 4096  # the kernel writes as many as the driver has by then, whatever we said: channels may have been added
STALL_S = 0.4
MOST_STUCK = 2


# ---------------------------------------------------------------- pure


def names_of(raw, count):
    """["rx_packets", ...] of `count` names of 32 bytes each; None for one that is no ASCII (a driver's slip)."""
    found = []
    for index in range(count):
        name = raw[index * NAME : (index + 1) * NAME].split(b"\0")[0]
        good = name and all(32 <= byte < 127 for byte in bytearray(name))
        found.append(name.decode("ascii").strip() if good else None)
    return found


def values_of(raw, count):
    """`count` unsigned 64-bit numbers in this machine's order."""
    return list(struct.unpack_from("=%dQ" % count, raw, 0))


def pairs(names, values):
    """{name: value}; a name that stands there twice tells nothing for sure and is left out."""
    seen, found = set(), {}
    for name, value in zip(names, values):
        if name is None:
            continue
        if name in seen:
            found.pop(name, None)
        else:
            found[name] = value
        seen.add(name)
    return found


# ---------------------------------------------------------------- edge


def ask(sock, device, command, head, size):
    """The bytes behind one ethtool command, or None where the device or its driver does not know it."""
    block = array.array("B", struct.pack("=I", command) + head)
    block.extend([0] * (size - len(block)))
    name = device.encode("ascii", "replace")[:15]
    request = struct.pack("16sP16x", name, block.buffer_info()[0])
    try:
        fcntl.ioctl(sock.fileno(), SIOCETHTOOL, request)
    except OSError:
        return None
    return block.tobytes()


def of_device(sock, device):
    """{name: value} of one device, {} where it has no statistics, None where they could not be read together."""
    told = ask(sock, device, GDRVINFO, b"", DRVINFO_BYTES)
    count = struct.unpack_from("=I", told, N_STATS_AT)[0] if told else 0
    if not count:
        return {}
    if count > MOST:
        return None
    raw = ask(sock, device, GSTRINGS, struct.pack("=II", SET_STATS, count), 12 + (count + SLACK) * NAME)
    if raw is None or struct.unpack_from("=I", raw, 8)[0] != count:
        return None
    names = names_of(raw[12:], count)
    raw = ask(sock, device, GSTATS, struct.pack("=I", count), 8 + (count + SLACK) * 8)
    if raw is None or struct.unpack_from("=I", raw, 4)[0] != count:
        return None
    return pairs(names, values_of(raw[8:], count))


def statistics(devices, left):
    """({device: its statistics or None}, devices whose answer did not come in time); `left`: seconds left for the probe."""
    if not devices:
        return {}, []
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    except OSError:
        return {}, []
    found, stuck, _ = guarded(list(devices), lambda device: of_device(sock, device), left, STALL_S, MOST_STUCK)
    if not stuck:
        sock.close()  # one that hangs still holds it
    return found, stuck
