"""What can be seen of a live job that nobody prepared, from outside: nothing is injected, nothing is written."""
