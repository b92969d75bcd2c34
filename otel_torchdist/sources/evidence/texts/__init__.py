"""The formats, each of one tool. A reader takes the lines that concern it and returns statements."""
