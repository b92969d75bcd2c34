"""What ranks agree on through the store of their job: the id of the run, and where agents are."""
