"""A `/proc` and a `/sys` as kernels write them, in a directory."""

from __future__ import annotations

from pathlib import Path

PSI = (
    "some avg10=70.00 avg60=14.44 avg300=11.07 total=6325500611\n"
    "full avg10=63.00 avg60=0.00 avg300=0.00 total=2500000\n"
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
        self.port("mlx5_0", 1)
        return self

    def port(self, adapter: str, number: int, downed: int = 0) -> None:
        """Write an InfiniBand port that has lost its link some times."""
        self.write(f"sys/class/infiniband/{adapter}/ports/{number}/counters/link_downed", f"{downed}\n")
