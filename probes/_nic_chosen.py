"""Which interfaces does a job choose by its NCCL environment? Shared by the nic probe and the facts.

    choice("^=mlx5_2:1")   ->   ((("mlx5_2", 1),), True, True)       all but port 1 of exactly mlx5_2
    lists(found, "mlx5_2", 1)                                        do its words match this name?

NCCL_IB_HCA chooses among RDMA devices, NCCL_SOCKET_IFNAME among netdevs (NVIDIA/nccl src/misc/utils.cc): words are prefixes
unless "=" stands before them, "^" turns the list into what is left out.
Fooled by   /etc/nccl.conf and network plugins, which can say otherwise; an environment that we may not read (nothing is
            chosen then, and every port is read).
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""


def choice(value):
    """(((name, port or None), ...), exact, excluded) of an environment value; None for one that chooses nothing."""
    text = value.strip()
    excluded = text.startswith("^")
    text = text[1:] if excluded else text
    exact = text.startswith("=")
    words = []
    for word in (text[1:] if exact else text).split(","):
        name, _, rest = word.strip().partition(":")
        number = rest.partition(":")[0]
        if name:
            words.append((name, int(number) if number.isdigit() and len(number) < 6 else None))
    return (tuple(words), exact, excluded) if words else None


def lists(found, name, port=None):
    """Do the words of a choice match this name, whatever the list is for?"""
    words, exact, _ = found
    for word, number in words:
        if (name == word if exact else name.startswith(word)) and (number is None or port in (None, number)):
            return True
    return False


def rdma_off(env):
    """Do these variables tell NCCL to leave RDMA alone?"""
    told = env.get("NCCL_IB_DISABLE", "").strip()
    return (told.isdigit() and int(told) != 0) or env.get("NCCL_NET", "").strip().lower() == "socket"


class Chosen(object):
    """What the ranks of a node say of its interfaces, all of them together.

    by    "environment": at least one names RDMA devices or netdevs; "nobody": none does, or none could be read
    """

    def __init__(self, environments):
        environments = list(environments)
        self.no_rdma = bool(environments) and all(rdma_off(env) for env in environments)
        self.hca, self.socket = [], []
        for env in environments:
            for name, found in (("NCCL_IB_HCA", self.hca), ("NCCL_SOCKET_IFNAME", self.socket)):
                told = choice(env.get(name, ""))
                if told is not None and told not in found:
                    found.append(told)
        self.named_hca = [] if self.no_rdma else [one for one in self.hca if not one[2]]
        self.named_socket = [one for one in self.socket if not one[2]]
        # One rank without a list may take every device: only if each that tells us has one, the others are not the job's.
        lists_all = all(choice(env.get("NCCL_IB_HCA", "")) for env in environments if not rdma_off(env))
        self.closed = bool(self.named_hca) and lists_all
        self.by = "environment" if self.named_hca or self.named_socket or self.hca else "nobody"

    def device(self, name):
        """May the job use this RDMA device? Only what its list leaves out is none of its business."""
        if self.no_rdma:
            return False
        if self.closed:
            return any(lists(one, name) for one in self.named_hca)
        return not any(one[2] and lists(one, name) for one in self.hca) or any(
            lists(one, name) for one in self.named_hca
        )

    def netdev(self, name):
        """Does the job name this netdev for its sockets?"""
        return any(lists(one, name) for one in self.named_socket)
