"""What attention costs, counted and never timed: bytes, operations, thread blocks; hardware as data."""
