"""The recording core: operations of c10d on the tape, groups, devices, runs, requests."""
