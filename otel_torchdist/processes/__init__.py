"""What the kernel knows of the processes behind ranks: whether they run, when and how they died, where they are."""
