"""The native library, which records calls in C++ without Python, and the code that builds, loads and controls it."""
