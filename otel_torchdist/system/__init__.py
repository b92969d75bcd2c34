"""Files and the own process, with what the operating system offers: locks, ownership, the end of a process."""
