"""Counters of a port: which are worth sending, how they go over the wire, and where they stick. Shared by the nic probe.

    keep("rx_prio3_pause")                              True      keep("rx3_packets")   False: one of a hundred queues
    pack([{"a": 0, "b": 7}, {"a": 4}])                  (["a"], [{"b": 7}, {}], ["0", ""], [[], [0, 4]])
    unpack(["a"], {"b": 7}, "0", [])                    {"a": 0, "b": 7}: the zeros were read, they are not absent
    tcp(snmp, netstat)                                  {"OutSegs": 3831442, "TCPTimeouts": 9, ...}

Most counters of a healthy port stand at 0, and the names are most of an answer, so what stands at 0, or is told of many ports,
is sent as a place in the answer's list of names. One that could not be read is null; one that is not there is absent: neither is 0.
Fooled by   drivers that rename their counters (the operator's side maps them by a table of synonyms, so here a name is kept by
            what it is about); /proc/net, which is that of the probe's own network namespace and not of a container's.
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import re

# Widths of the InfiniBand port counters: they stick at 2^bits - 1 and do not wrap (notes/network.md 1.2).
STICKS_AT = {
    "link_downed": 255,
    "link_error_recovery": 255,
    "symbol_error": 65535,
    "port_rcv_errors": 65535,
    "port_rcv_remote_physical_errors": 65535,
    "port_rcv_switch_relay_errors": 65535,
    "port_xmit_discards": 65535,
    "VL15_dropped": 65535,
    "port_xmit_constraint_errors": 255,
    "port_rcv_constraint_errors": 255,
    "local_link_integrity_errors": 15,
    "excessive_buffer_overrun_errors": 15,
    "port_xmit_wait": 4294967295,
}
# Of what `ethtool -S` tells (thousands of lines, most of them of one queue each): loss, pause, congestion, link, shaping.
_ABOUT = re.compile(
    "pause|pfc|xoff|ecn|cnp|discard|drop|crc|fcs|symbol|corrected_bits|link_down|link_error|icrc|timeout|retrans|fault"
    "|allowance|ena_srd|out_of|missing|phy$|rdma|reset|overrun|err",
    re.I,
)
_QUEUE = re.compile(
    r"^(?:[rt]x|ch|xq|[rt]xq|q)[-_]?\d+[_.:]|queue[-_]?\d|^\[\d+\]|^(?:ptp|xdp|[rt]x_(?:xdp|xsk|tls|ktls|macsec))|_(?:xdp|xsk)_"
    r"|^[rt]x_(?:\d+_to|\d+_x_)|buffer_passed_thres"
)
CXI = re.compile(
    r"(?:hni_pause_recv_|hni_pause_xoff_sent_|hni_rx_paused_|hni_rx_paused_std|hni_tx_paused_|pct_no_|pct_[st]\w{2}_timeouts"
    r"|hni_llr_|cq_cq_oxe_num_stalls|hni_sts_[rt]x_ok_octets|hni_pkts_|hni_pcs_uncorrected)"
)
# Files of an RDMA port that say nothing of its wire: every one is bytes on the wire of every answer.
IDLE = re.compile(
    r"(?:unicast|multicast)_\w+_packets$|rx_(?:atomic|read|write)_requests$|rx_dct_connect$|(?:req|resp)_cqe_|"
    r"resp_(?:local_length|remote_access)_|req_remote_"
)
RETRY_HANDLER = ("spt_timeouts", "sct_timeouts", "nacks", "nack_sequence_error", "ignored_sct_timeouts", "parked_nids")
MOST_KEPT = 128
COMMON = 3  # ports that have a counter, from which its name is sent once for all of them
TCP_NAMES = {
    "Tcp": ("InSegs", "OutSegs", "RetransSegs", "InErrs"),
    "TcpExt": ("TCPTimeouts", "TCPLostRetransmit", "TCPFastRetrans", "TCPSynRetrans", "TCPLossProbes"),
    "IpExt": ("InCEPkts",),
}


def count(text):
    """A counter's value, or None ("N/A (no PMA)", an unreadable or absent file, -1)."""
    word = (text or "").strip()
    return int(word) if word and len(word) <= 20 and all(c in "0123456789" for c in word) else None


def stamped(text):
    """811 of "811@1790000000.000000001", as Slingshot's telemetry files have it (value, CLOCK_REALTIME)."""
    return count((text or "").partition("@")[0])


def keep(name):
    """Is this statistic of a driver about the wire, and not about one of its queues?"""
    return len(name) <= 64 and bool(_ABOUT.search(name)) and not _QUEUE.search(name)


def kept(statistics):
    """({name: value} of those worth sending, how many more there were)."""
    names = sorted(name for name in statistics if keep(name))
    return {name: statistics[name] for name in names[:MOST_KEPT]}, max(0, len(names) - MOST_KEPT)


def saturated(counters):
    return sorted(n for n, v in counters.items() if v is not None and v == STICKS_AT.get(n))


def delta(name, before, after):
    """Events between two looks, or None where the counter cannot tell (absent, reset, or stuck at its maximum)."""
    if before is None or after is None or after < before or after == STICKS_AT.get(name):
        return None
    return after - before


# ---------------------------------------------------------------- the wire


def fold(places):
    """ "0+3,7" of [0, 1, 2, 7]: runs of places, as start or start+how many."""
    runs = []
    for place in sorted(places):
        if runs and runs[-1][0] + runs[-1][1] == place:
            runs[-1][1] += 1
        else:
            runs.append([place, 1])
    return ",".join("%d+%d" % (start, many) if many > 1 else str(start) for start, many in runs)


_RUN = re.compile(r"(\d{1,5})(?:\+(\d{1,5}))?$")


def unfold(text, names):
    """The names that folded places point at. A place that is not there ends it: such an answer is not ours."""
    found = []
    for run in (text or "").split(",") if text else ():
        match = _RUN.match(run)
        start, many = (int(match.group(1)), int(match.group(2) or 1)) if match else (len(names), 1)
        if start + many > len(names) or len(found) + many > len(names):
            break
        found.extend(names[start : start + many])
    return found


def pack(all_counters):
    """(names, the rest by name, places of those at 0, [place, value, place, value, ...]) of every port's {name: value}.

    Eight ports have the same counters: a name that many of them have is sent once for all.
    """
    ports = {}
    for counters in all_counters:
        for name, value in counters.items():
            if value is not None:
                ports[name] = ports.get(name, 0) + 1
    zero = {name for counters in all_counters for name, value in counters.items() if value == 0}
    names = sorted(name for name, many in ports.items() if many >= COMMON or name in zero)
    place = {name: index for index, name in enumerate(names)}
    rest, zeros, values = [], [], []
    for counters in all_counters:
        told = {n: v for n, v in counters.items() if v is not None and n in place}
        rest.append({n: v for n, v in counters.items() if n not in told})
        zeros.append(fold(place[n] for n, v in told.items() if v == 0))
        values.append([each for n in sorted(told) if told[n] for each in (place[n], told[n])])
    return names, rest, zeros, values


def unpack(names, counters, zeros, values):
    """{name: value} of one port as `pack` sent it. Places that are not there are left out."""
    found = dict.fromkeys(unfold(zeros, names), 0)
    for place, value in zip(values[::2], values[1::2]):
        if 0 <= place < len(names):
            found[names[place]] = value
    found.update(counters)
    return found


def whole(data):
    """The ports of an answer with all their counters by name, as a reader wants them."""
    names = [name for name in data.get("names") or () if isinstance(name, str)]
    return [
        dict(nic, counters=unpack(names, nic.get("counters") or {}, nic.get("zeros") or "", nic.get("values") or []))
        for nic in data["nics"]
    ]


# ---------------------------------------------------------------- TCP


def tcp(*texts):
    """TCP's own counters out of /proc/net/snmp and /proc/net/netstat: a line of names, then a line of values, never by column.

    Tcp: RtoAlgorithm ... OutSegs RetransSegs      Tcp: 1 ... 3831442 678
    """
    found = {}
    for text in texts:
        lines = (text or "").splitlines()
        for head, row in zip(lines, lines[1:]):
            group, _, names = head.partition(":")
            other, _, values = row.partition(":")
            names, values = names.split(), values.split()
            if (
                group != other
                or group not in TCP_NAMES
                or len(names) != len(values)
                or count(names[:1] and names[0]) is not None
            ):
                continue
            told = dict(zip(names, values))
            for name in TCP_NAMES[group]:
                if name in told and name not in found:
                    found[name] = count(told[name])
    return found
