"""What can be seen of a live job that was not prepared, from outside: nothing is injected, nothing is written."""
