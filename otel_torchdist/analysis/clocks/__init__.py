"""One time for the ranks of all nodes: how far their clocks are apart, from the operations in which they meet. Pure."""
