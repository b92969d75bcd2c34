"""The verdict on a stall. Pure: frozen snapshots of the ranks go in, verdicts come out; nothing is asked or written."""
