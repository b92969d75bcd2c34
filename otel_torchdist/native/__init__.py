"""The library in C++ that records calls without Python, and what Python needs to build, load and control it."""
