"""One job on one node: its directory, its runs, and the small files beside its tapes."""
