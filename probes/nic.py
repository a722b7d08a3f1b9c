"""Is each port of this node up, has it lost its link, and are bytes moving?

Reads    /sys/class/infiniband/mlx5_0/ports/1/{state,phys_state,rate}    "4: ACTIVE" "5: LinkUp" "400 Gb/sec (4X NDR)"
         /sys/class/infiniband/mlx5_0/ports/1/{counters,hw_counters}/*   link_downed "3"   port_rcv_data "811"
         /sys/class/net/eth0/{operstate,carrier,carrier_changes,carrier_down_count,speed,type,statistics/*}
         /sys/class/net/eth0/device/driver -> …/mlx5_core
Fooled by   counters since boot (3 may be last month: only a delta between looks speaks); narrow counters that stick
            at their maximum (`saturated`); the first "down" that every netdev books at its creation; EFA, which always
            says ACTIVE; `carrier`, which cannot be read while a port is administratively down (null, not 0); a file
            that is absent in a VM (absent is null, not 0); RoCE, whose link_downed counts only what firmware books; a
            container with its own network namespace, which shows its own netdevs only.
"""

import os
import re

PROBE = {
    "name": "nic",
    "version": 1,
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
        "counters": "counts since boot or last reset, by their kernel names",
        "saturated": "names of counters that stand at their maximum: their delta is unknown, not 0",
        "netdev": "name of the Ethernet or IPoIB device of an infiniband port",
    },
}

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
STATISTICS = (
    "rx_packets tx_packets rx_errors tx_errors rx_dropped tx_dropped rx_missed_errors rx_crc_errors rx_fifo_errors "
    "tx_carrier_errors tx_aborted_errors multicast collisions"
).split()
# Devices without a wire of their own repeat their lower device's bytes, or count what never leaves the node.
VIRTUAL = re.compile(
    "(?:lo$|docker[0-9]|br-|virbr|veth|cali|cilium|flannel|cni|kube-|nodelocaldns|tunl|sit[0-9]|ip6|gre|erspan|ifb)"
)
HARDWARE = {1: "ethernet", 32: "infiniband"}  # if_arp.h: ARPHRD_ETHER, ARPHRD_INFINIBAND (IPoIB)
MAX_NICS = 128
MAX_COUNTERS = 160


# ---------------------------------------------------------------- pure


def named_state(text):
    """ACTIVE of "4: ACTIVE"; None for anything else."""
    found = re.match(r"\d+:\s*(\S.*?)\s*$", text or "")
    return found.group(1)[:40] if found else None


def count(text):
    """A counter's value, or None ("N/A (no PMA)", an unreadable or absent file, -1)."""
    word = (text or "").strip()
    return int(word) if word and len(word) <= 20 and all(c in "0123456789" for c in word) else None


def rate_mbps(text):
    """400000 of "400 Gb/sec (4X NDR)"."""
    found = re.match(r"(\d+(?:\.\d+)?) Gb/sec", text or "")
    return int(float(found.group(1)) * 1000) if found else None


def saturated(counters):
    return sorted(n for n, v in counters.items() if v is not None and v == STICKS_AT.get(n))


def delta(name, before, after):
    """Events between two looks, or None where the counter cannot tell (absent, reset, or stuck at its maximum)."""
    if before is None or after is None or after < before or after == STICKS_AT.get(name):
        return None
    return after - before


# ---------------------------------------------------------------- edge


def word(ctx, path):
    text = ctx.read(path, 4096)
    return None if text is None else "".join(c if c.isprintable() else " " for c in text.strip()[:80])


def driver_of(path):
    try:
        return os.path.basename(os.readlink(os.path.join(path, "device", "driver")))[:40] or None
    except OSError:
        return None


def read_counters(ctx, folder):
    """Counters of a folder by name. Where the first two cannot be read the rest is left alone: on a restricted function
    each refused read floods the kernel log with mlx5_cmd_out_err (notes/network.md 1.3)."""
    found = {}
    for name in ctx.listdir(folder)[:MAX_COUNTERS]:
        text = ctx.read(os.path.join(folder, name), 64)
        found[name] = count(text)
        if text is None and len(found) == 2 and not any(v is not None for v in found.values()):
            break
    return found


def infiniband_port(ctx, device, port):
    base = ctx.sys("class/infiniband/%s" % device)
    here = os.path.join(base, "ports", port)
    counters = read_counters(ctx, os.path.join(here, "counters"))
    counters.update(read_counters(ctx, os.path.join(here, "hw_counters")))
    received, sent = counters.get("port_rcv_data"), counters.get("port_xmit_data")
    layer = word(ctx, os.path.join(here, "link_layer"))
    netdev = word(ctx, os.path.join(here, "gid_attrs", "ndevs", "0"))
    if not netdev:
        netdevs = ctx.listdir(os.path.join(base, "device", "net"))
        netdev = netdevs[0] if len(netdevs) == 1 else None
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
        "speed_mbps": rate_mbps(ctx.read(os.path.join(here, "rate"), 256)),
        "link_layer": layer,
        "port": count(port),
        "netdev": netdev,
        "counters": counters,
        "saturated": saturated(counters),
    }


def netdev(ctx, name):
    base = ctx.sys("class/net/%s" % name)

    def value(path):
        return count(ctx.read(os.path.join(base, path), 64))

    carrier, kind, speed = value("carrier"), value("type"), value("speed")
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
        "link_layer": "Ethernet" if kind == 1 else None,
        "port": None,
        "netdev": name,
        "counters": {s: value("statistics/" + s) for s in STATISTICS},
        "saturated": [],
    }


def collect(ctx):
    nics = []
    devices = ctx.listdir(ctx.sys("class/infiniband"))
    for device in devices:
        for port in ctx.listdir(ctx.sys("class/infiniband/%s/ports" % device)):
            if len(nics) < MAX_NICS and ctx.left() > 0.3:
                nics.append(infiniband_port(ctx, device, port))
    names = [n for n in ctx.listdir(ctx.sys("class/net")) if not VIRTUAL.match(n) and n != "bonding_masters"]
    for name in names:
        if len(nics) < MAX_NICS and ctx.left() > 0.2:
            nics.append(netdev(ctx, name))
        else:
            ctx.note("%d netdevs, not all told" % len(names))
            break
    if not nics:
        raise ctx.Absent("no port under %s" % ctx.sys("class"))
    return {"nics": nics, "rdma_devices": len(devices)}


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
