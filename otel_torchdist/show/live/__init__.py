"""The live page: snapshots that the reader publishes while there are visitors, and the document built from them."""
