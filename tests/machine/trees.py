"""A `/proc` and a `/sys` as kernels write them, in a directory."""

from __future__ import annotations

from pathlib import Path

PSI = (
    "some avg10=70.00 avg60=14.44 avg300=11.07 total=6325500611\n"
    "full avg10=63.00 avg60=0.00 avg300=0.00 total=2500000\n"
)
MEMINFO = (
    "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    300 kB\nBuffers:          50 kB\n"
    "Cached:          250 kB\nSwapTotal:       500 kB\nSwapFree:        400 kB\nHugePages_Total:       0\n"
)
STAT = "cpu  100 200 300 400 500 60 7 8 0 0\ncpu0 100 200 300 400 500 60 7 8 0 0\nintr 1\n"
NET_DEV = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier "
    "compressed\n"
    "    lo:    5000      10    0    0    0     0          0         0     5000      10    0    0    0     0       0 "
    "0\n"
    "  eth0:123456789012  99    1    2    0     0          0         0  2000      20    3    4    0     0       0 0\n"
    "vethabc: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
)


class Tree:
    """Files below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        """Write a file, or replace it."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def machine(self) -> Tree:
        """Write the files of a whole machine; returns this tree."""
        for resource in ("cpu", "memory", "io"):
            self.write(f"proc/pressure/{resource}", PSI)
        self.write("proc/meminfo", MEMINFO)
        self.write("proc/stat", STAT)
        self.write("proc/net/dev", NET_DEV)
        self.interface("eth0", "100000\n")
        self.write("sys/class/net/vethabc/speed", "10000\n")
        self.port("mlx5_0", 1, received=1000, sent=2000)
        return self

    def interface(self, name: str, speed: str) -> None:
        """Write a physical interface."""
        self.write(f"sys/class/net/{name}/device/vendor", "0x15b3\n")
        self.write(f"sys/class/net/{name}/speed", speed)

    def port(self, adapter: str, number: int, received: int, sent: int, downed: int = 0) -> None:
        """Write an InfiniBand port."""
        folder = f"sys/class/infiniband/{adapter}/ports/{number}"
        self.write(f"{folder}/rate", "400 Gb/sec (4X NDR)\n")
        for name, count in {"port_rcv_data": received, "port_xmit_data": sent, "link_downed": downed}.items():
            self.write(f"{folder}/counters/{name}", f"{count}\n")

    def process(self, pid: int, start_ticks: int, name: str = "python (3) x") -> None:
        """Write a process of 25 threads that has used processor time and memory."""
        rest = f"S 1 1 1 0 -1 4194304 9 0 0 0 150 50 0 0 20 0 25 0 {start_ticks} 1 2 3"
        self.write(f"proc/{pid}/stat", f"{pid} ({name}) {rest}\n")
        self.write(f"proc/{pid}/statm", "1000 300 100 5 0 123 0\n")
