"""The values of the domain: what a job calls and does. They know no file, no format and no process."""
