"""Operations on CUDA devices: when each was enqueued, began and ended, found without synchronizing."""
