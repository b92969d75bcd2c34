"""The base of all pages for browsers: style, drawing modules in plain JavaScript, and assembly."""
