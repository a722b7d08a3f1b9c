"""Is each port of this node up, has it lost its link, are bytes moving, and what do its counters say of the wire?

Reads    /sys/class/infiniband/mlx5_0/ports/1/{state,phys_state,rate}    "4: ACTIVE" "5: LinkUp" "400 Gb/sec (4X NDR)"
         /sys/class/infiniband/mlx5_0/ports/1/{counters,hw_counters}/*   link_downed "3"   port_rcv_data "811"
         /sys/class/net/eth0/{operstate,carrier,carrier_changes,carrier_down_count,speed,type,statistics/*}
         /sys/class/net/eth0/device -> ../../../0000:17:00.0   …/driver -> …/mlx5_core   (address, and so the rail)
         the statistics of the drivers of the job's netdevs, as `ethtool -S` shows them (_nic_ethtool.py)
         /sys/class/cxi/cxi0/device/telemetry/* "811@1790000000.000000001"   /run/cxi/cxi0/sct_timeouts   (Slingshot)
         /proc/net/{snmp,netstat}   TCP's time-outs and segments sent again; /proc/sys/kernel/random/boot_id
         `ss -tin` where the job speaks over TCP (_nic_sockets.py): who has to send again, and to whom
         NCCL_IB_HCA and the like of the ranks' environments: counters of what the job does not name are left alone
Fooled by   counters since boot (3 may be last month: only a delta between looks speaks); narrow counters that stick
            at their maximum (`saturated`); the first "down" that every netdev books at its creation; EFA, which always
            says ACTIVE; `carrier`, which cannot be read while a port is administratively down (null, not 0); a file
            that is absent in a VM (absent is null, not 0); RoCE, whose link_downed counts only what firmware books; a
            container with its own network namespace, which shows its own netdevs and its own TCP only; a function whose
            counters are restricted: each refusal writes a line into the kernel log, so only the job's are read.
"""

import os
import re
import time

if __package__:  # read as a part of triage (tests)
    from ._nic_chosen import Chosen
    from ._nic_counters import CXI, IDLE, RETRY_HANDLER, count, delta, kept, pack, saturated, stamped, tcp
    from ._nic_ethtool import statistics
    from ._nic_sockets import COMMAND, parse
    from ._processes import parse_environ, slurp
    from ._stuck import guarded
else:  # beside this file, or in the payload
    from _nic_chosen import Chosen
    from _nic_counters import CXI, IDLE, RETRY_HANDLER, count, delta, kept, pack, saturated, stamped, tcp
    from _nic_ethtool import statistics
    from _nic_sockets import COMMAND, parse
    from _processes import parse_environ, slurp
    from _stuck import guarded

PROBE = {
    "name": "nic",
    "version": 2,
    "needs": [],
    "timeout_s": 3,
    "cost": "cheap",
    "fields": {
        "state": "text, per port: ACTIVE DOWN INIT ARMED (infiniband), up down unknown (netdev)",
        "phys_state": "text, per infiniband port: LinkUp Polling Disabled; null for a netdev",
        "carrier": "0 or 1, per netdev; null where it cannot be read (administratively down)",
        "carrier_changes": "count since the netdev was made",
        "carrier_down_count": "count since the netdev was made, 1 for a fresh one that never lost its link",
        "rx_bytes": "bytes since boot; infiniband: port_rcv_data x 4",
        "tx_bytes": "bytes since boot; infiniband: port_xmit_data x 4",
        "speed_mbps": "Mbit/s; null if unknown or down",
        "rate": "text, per infiniband port: 400 Gb/sec (4X NDR)",
        "pci": "PCI address of the function, 0000:17:00.0; null for a device without one",
        "board": "board_id of an RDMA device: only like cards are compared",
        "virtual": "true for a virtual function, which has no counters of the physical port",
        "counters": "counts since boot or last reset, by their kernel names; those not in `zeros` or `values`",
        "zeros": "places in `names` of the counters that were read and stand at 0: start or start+how many",
        "values": "of counters that many ports have: a place in `names`, the count, a place, the count, ...",
        "names": "per node: names of counters that stand at 0 somewhere, or that many ports have",
        "unread": "why the counters of a port were left alone; null if they were read",
        "saturated": "names of counters that stand at their maximum: their delta is unknown, not 0",
        "netdev": "name of the Ethernet or IPoIB device of an infiniband port",
        "tcp": "per node: counts since boot of TCP, in this network namespace",
        "sockets": "per node whose job speaks over TCP: of the busiest connections both ends, segments sent, sent again, ms that it waited for the network",
        "boot_id": "per node: counters of another boot cannot be compared",
        "chosen": "per node: environment (the ranks name their interfaces) or nobody (all are read)",
    },
}

STATISTICS = (
    "rx_packets tx_packets rx_errors tx_errors rx_dropped tx_dropped rx_missed_errors rx_crc_errors rx_fifo_errors "
    "tx_carrier_errors tx_aborted_errors multicast collisions"
).split()
# Devices without a wire of their own repeat their lower device's bytes, or count what never leaves the node.
VIRTUAL = re.compile(
    "(?:lo$|docker[0-9]|br-|virbr|veth|cali|cilium|flannel|cni|kube-|nodelocaldns|tunl|sit[0-9]|ip6|gre|erspan|ifb)"
)
HARDWARE = {1: "ethernet", 32: "infiniband"}  # if_arp.h: ARPHRD_ETHER, ARPHRD_INFINIBAND (IPoIB)
PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
MAX_NICS = 128
MAX_COUNTERS = 160
ENVIRONMENTS_S = 1.3  # guarded() keeps half a second of it for what comes after
MAX_ASKED = 32  # netdevs whose drivers are asked for their statistics
NOT_NAMED = "the job names other devices"
__all__ = ["PROBE", "collect", "delta", "named_state", "rate_mbps"]


# ---------------------------------------------------------------- pure


def named_state(text):
    """ACTIVE of "4: ACTIVE"; None for anything else."""
    found = re.match(r"\d+:\s*(\S.*?)\s*$", text or "")
    return found.group(1)[:40] if found else None


def rate_mbps(text):
    """400000 of "400 Gb/sec (4X NDR)"."""
    found = re.match(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec", text or "")
    return int(float(found.group(1)) * 1000) if found else None


# ---------------------------------------------------------------- edge


def word(ctx, path):
    text = ctx.read(path, 4096)
    return None if text is None else "".join(c if c.isprintable() else " " for c in text.strip()[:80])


def driver_of(path):
    try:
        return os.path.basename(os.readlink(os.path.join(path, "device", "driver")))[:40] or None
    except OSError:
        return None


def function_of(path):
    """(PCI address or None, whether it is a virtual function) of a device's folder."""
    device = os.path.join(path, "device")
    try:
        # A virtio device stands one folder below its PCI function.
        names = os.path.realpath(device).rsplit("/", 2)[1:]
        pci = next((name for name in reversed(names) if PCI.match(name)), None)
        return pci, os.path.islink(os.path.join(device, "physfn"))
    except (OSError, ValueError):
        return None, False


def read_counters(ctx, folder, value=count, names=None):
    """Counters of a folder by name. Where the first two cannot be read the rest is left alone: on a restricted function
    each refused read floods the kernel log with mlx5_cmd_out_err (notes/network.md 1.3)."""
    found = {}
    for name in [n for n in (ctx.listdir(folder) if names is None else names) if not IDLE.match(n)][:MAX_COUNTERS]:
        text = ctx.read(os.path.join(folder, name), 64)
        found[name[:64]] = value(text)
        if text is None and len(found) == 2 and not any(v is not None for v in found.values()):
            break
        if ctx.left() < 0.3:
            ctx.note("counters of %s: not all read in time" % folder)
            break
    return found


def infiniband_port(ctx, device, port, used):
    base = ctx.sys("class/infiniband/%s" % device)
    here = os.path.join(base, "ports", port)
    counters = {}
    if used:
        counters = read_counters(ctx, os.path.join(here, "counters"))
        counters.update(read_counters(ctx, os.path.join(here, "hw_counters")))
    received, sent = counters.get("port_rcv_data"), counters.get("port_xmit_data")
    layer = word(ctx, os.path.join(here, "link_layer"))
    netdev = word(ctx, os.path.join(here, "gid_attrs", "ndevs", "0"))
    if not netdev:
        netdevs = ctx.listdir(os.path.join(base, "device", "net"))
        netdev = netdevs[0] if len(netdevs) == 1 else None
    rate = word(ctx, os.path.join(here, "rate"))
    pci, virtual = function_of(base)
    return {
        "name": device,
        "kind": "infiniband",
        "driver": driver_of(base),
        "state": named_state(ctx.read(os.path.join(here, "state"), 256)),
        "phys_state": named_state(ctx.read(os.path.join(here, "phys_state"), 256)),
        "carrier": None,
        "carrier_changes": None,
        "carrier_down_count": None,
        "rx_bytes": None if received is None else received * 4,
        "tx_bytes": None if sent is None else sent * 4,
        "speed_mbps": rate_mbps(rate),
        "rate": rate,
        "link_layer": layer,
        "port": count(port),
        "netdev": netdev,
        "pci": pci,
        "virtual": virtual,
        "board": word(ctx, os.path.join(base, "board_id")),
        "counters": counters,
        "saturated": saturated(counters),
        "unread": None if used else NOT_NAMED,
    }


def netdev(ctx, name):
    base = ctx.sys("class/net/%s" % name)

    def value(path):
        return count(ctx.read(os.path.join(base, path), 64))

    carrier, kind, speed = value("carrier"), value("type"), value("speed")
    pci, virtual = function_of(base)
    return {
        "name": name,
        "kind": HARDWARE.get(kind, "other"),
        "driver": driver_of(base),
        "state": word(ctx, os.path.join(base, "operstate")),
        "phys_state": None,
        "carrier": carrier if carrier in (0, 1) else None,
        "carrier_changes": value("carrier_changes"),
        "carrier_down_count": value("carrier_down_count"),
        "rx_bytes": value("statistics/rx_bytes"),
        "tx_bytes": value("statistics/tx_bytes"),
        "speed_mbps": speed or None,
        "rate": None,
        "link_layer": "Ethernet" if kind == 1 else None,
        "port": None,
        "netdev": name,
        "pci": pci,
        "virtual": virtual,
        "board": None,
        "counters": {s: value("statistics/" + s) for s in STATISTICS},
        "saturated": [],
        "unread": None,
    }


def chosen_by_ranks(ctx):
    """What the ranks of this node name in their environments; nothing where there are none, or none may be read.

    A rank in D state may not let itself be read (notes/prototype-findings.md 2.2). Its siblings say the same, and the
    ports are what is asked here: so little time is spent on it, and at most two are waited for.
    """
    until = time.monotonic() + ENVIRONMENTS_S
    names = [name for name in ctx.listdir(ctx.procfs) if name.isdigit()]

    def left():
        return min(ctx.left() - 1.0, until - time.monotonic())

    def environment(name):
        return parse_environ(slurp(ctx.proc(name + "/environ"))[0] or b"")

    found, stuck, complete = guarded(names, environment, left, 0.2, 2)
    if stuck or not complete:
        ctx.note("not every process told which interfaces it names")
    return Chosen(env for env in found.values() if env)


def wanted(chosen, nics):
    """Netdevs whose driver is to be asked: the job's, or, where it names none, all that are a device of their own."""
    devices = [nic for nic in nics if nic["link_layer"] is not None and nic["netdev"] != nic["name"]]
    taken = {nic["netdev"] for nic in devices if nic["unread"] is None and nic["netdev"]}
    restricted = {nic["netdev"] for nic in devices if nic["unread"] is not None and nic["netdev"]}
    found = []
    for nic in nics:
        name = nic["name"]
        if nic["netdev"] != name or nic["driver"] is None or nic["carrier"] == 0 or nic["kind"] == "other":
            continue
        if chosen.netdev(name) or (name not in restricted and (name in taken or not (chosen.named_socket or taken))):
            found.append(name)
    return found[:MAX_ASKED]


def add_statistics(ctx, chosen, nics):
    """Put what the drivers tell beside what sysfs tells of the same netdev. Only of this machine: there is no folder of it."""
    names = wanted(chosen, nics) if ctx.real else []
    told, stuck = statistics(names, ctx.left)
    for name in stuck:
        ctx.note("the driver of %s does not answer for its statistics" % name)
    for nic in nics:
        if nic["netdev"] == nic["name"] and told.get(nic["name"]):
            found, more = kept(told[nic["name"]])
            for key, value in found.items():
                nic["counters"].setdefault(key, value)
            if more:
                ctx.note("%s: %d more statistics were not told" % (nic["name"], more))


def add_slingshot(ctx, nics):
    """Counters of Slingshot adapters, on the netdev of the same PCI function. The retry handler's are a FUSE mount."""
    devices = {}
    for name in ctx.listdir(ctx.sys("class/cxi"))[:16]:
        devices[function_of(ctx.sys("class/cxi/%s" % name))[0]] = name
    for nic in nics:
        name = devices.get(nic["pci"]) if nic["pci"] and nic["netdev"] == nic["name"] else None
        if name is None:
            continue
        folder = ctx.sys("class/cxi/%s/device/telemetry" % name)
        files = [file for file in ctx.listdir(folder) if CXI.match(file)]
        nic["counters"].update(read_counters(ctx, folder, stamped, files))
        mount = ctx.root("run/cxi/%s" % name)
        paths = [os.path.join(mount, file) for file in RETRY_HANDLER]
        found, stuck, _ = guarded(paths, lambda path: ctx.read(path, 64), ctx.left, 0.3, 1)
        if stuck:
            ctx.note("%s does not answer" % mount)
        for path, text in found.items():
            if text is not None:
                nic["counters"]["rh_" + os.path.basename(path)] = count(text)


def connections(ctx, chosen, devices):
    """The busiest TCP connections, where the job's payload goes over them; [] elsewhere."""
    if devices and not chosen.no_rdma:
        return []
    code, out, _ = ctx.run(COMMAND, min(0.8, ctx.left() - 0.3)) if ctx.left() > 0.5 else (None, "", "")
    return parse(out) if code == 0 else []


def collect(ctx):
    chosen = chosen_by_ranks(ctx)
    nics = []
    devices = ctx.listdir(ctx.sys("class/infiniband"))
    for device in devices:
        for port in ctx.listdir(ctx.sys("class/infiniband/%s/ports" % device))[:16]:
            if len(nics) < MAX_NICS and ctx.left() > 0.3:
                nics.append(infiniband_port(ctx, device, port, chosen.device(device)))
    if len(devices) > MAX_NICS:
        ctx.note("%d RDMA devices, not all told" % len(devices))
    names = [n for n in ctx.listdir(ctx.sys("class/net")) if not VIRTUAL.match(n) and n != "bonding_masters"]
    for name in names:
        if len(nics) < MAX_NICS and ctx.left() > 0.2:
            nics.append(netdev(ctx, name))
        else:
            ctx.note("%d netdevs, not all told" % len(names))
            break
    if not nics:
        raise ctx.Absent("no port under %s" % ctx.sys("class"))
    add_slingshot(ctx, nics)
    add_statistics(ctx, chosen, nics)
    names, rest, zeros, values = pack([nic["counters"] for nic in nics])
    for nic, counters, places, told in zip(nics, rest, zeros, values):
        nic["counters"], nic["zeros"], nic["values"] = counters, places, told
    return {
        "nics": nics,
        "names": names,
        "rdma_devices": len(devices),
        "chosen": chosen.by,
        "boot_id": word(ctx, ctx.proc("sys/kernel/random/boot_id")),
        "sockets": connections(ctx, chosen, devices),
        "tcp": tcp(ctx.read(ctx.proc("net/snmp")), ctx.read(ctx.proc("net/netstat"))),
    }


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
