"""A job of one rank in a program that waits for any of its children from beginning to end."""

import os
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
threading.Thread(target=os.wait, daemon=True).start()
time.sleep(0.2)
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(1))
print("trained", child.pid)
