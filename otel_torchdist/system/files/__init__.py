"""Files that several processes, and perhaps several users, read and write."""
