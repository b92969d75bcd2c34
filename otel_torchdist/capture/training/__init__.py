"""What a training loop shows of itself: steps and their parts, optimizers, loss scales, expected waits, throughput."""
