"""Only ports that the job uses may be blamed, and only for what happened at the time of the stall."""

import pytest
from written_evidence import NOW, World


def world(env, nics, last_ago=400.0):
    made = World()
    for rank in range(8):
        for look in "AB":
            record = made.record(rank, look)
            base = {k: v for k, v in record["env"].items() if not k.startswith("NCCL")}
            made.change[(rank, look)] = {"env": {**base, **env}}
    made.processes().log(last_ago=last_ago)
    for look in "AB":
        for name in made.names:
            made.add("nic", name, look, {"nics": nics if name == "gpu002" else []})
    return made


def port(name, kind="ethernet", carrier=0, state="down"):
    return {"name": name, "kind": kind, "carrier": carrier, "state": state, "rx_bytes": 5, "tx_bytes": 5}


def down(made):
    return [(part.node, part.nic) for part in made.fact("links.down_now").parts]


@pytest.mark.parametrize(
    ("env", "name", "blamed"),
    [
        ({"NCCL_SOCKET_IFNAME": "fab"}, "fab0", True),
        ({"NCCL_SOCKET_IFNAME": "eth0,fab0"}, "fab0", True),
        ({"NCCL_SOCKET_IFNAME": "=fab0"}, "fab0", True),
        ({"NCCL_SOCKET_IFNAME": "=fab0"}, "fab01", False),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker0"}, "docker0", False),
        ({"NCCL_SOCKET_IFNAME": "^eno1,usb0"}, "usb0", False),
        ({"NCCL_IB_HCA": "=mlx5_1:1"}, "mlx5_10", False),
        ({"NCCL_IB_HCA": "^mlx5_2"}, "mlx5_2", False),
        ({}, "eth7", False),
    ],
)
def test_a_port_is_the_jobs_only_as_its_environment_says(env, name, blamed):
    made = world(env, [port(name)])
    assert down(made) == ([("gpu002", name)] if blamed else [])


def test_an_infiniband_port_that_was_never_cabled_is_not_blamed():
    made = world({}, [port("mlx5_3", "infiniband", None, "DOWN")])
    assert down(made) == []


def test_an_infiniband_port_whose_kernel_dates_the_loss_near_the_onset_is_blamed():
    made = world({}, [port("mlx5_3", "infiniband", None, "DOWN")])
    made.samples = [s for s in made.samples if not (s.probe == "kernel" and s.node == "gpu002")]
    event = {"id": "link_down", "kind": "link", "at": NOW - 399, "last_at": NOW - 399, "groups": {"dev": "mlx5_3"}}
    made.add("kernel", "gpu002", "A", {"readable": True, "events": [event]})
    assert down(made) == [("gpu002", "mlx5_3")]


def test_one_look_says_nothing_of_a_port():
    made = world({"NCCL_SOCKET_IFNAME": "fab"}, [port("fab0")])
    made.samples = [s for s in made.samples if not (s.probe == "nic" and s.look == "B")]
    assert made.fact("links.down_now").value is None
