"""Operations on CUDA devices: when each was enqueued, started and ended, determined without synchronizing."""
