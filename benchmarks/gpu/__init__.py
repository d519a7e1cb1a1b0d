"""What only a GPU can prove, in five parts of at most ten minutes each: see docs/gpu.md."""
