"""Several ranks on one device, which NCCL refuses within a node: each is a node of its own, connected by sockets."""

import os

import torch

DEVICES = torch.cuda.device_count


def choose_device(rank: int) -> torch.device:
    """The device of a rank, which is made the current one, before NCCL is used."""
    device = torch.device("cuda", rank % DEVICES())
    torch.cuda.set_device(device)
    if DEVICES() == 1:
        os.environ |= {"NCCL_HOSTID": f"rank-{rank}", "NCCL_SOCKET_IFNAME": "lo"}
    return device
