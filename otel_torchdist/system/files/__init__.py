"""Files that several processes, and possibly several users, read and write."""
