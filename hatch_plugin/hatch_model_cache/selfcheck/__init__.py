"""Says how far a wheel's GPU kernels were checked without a GPU; torch and Triton are for `compile.selfcheck`."""
