"""The live page: what the reader publishes while there are visitors, and the document made of it."""
