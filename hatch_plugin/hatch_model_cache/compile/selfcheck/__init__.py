"""Checks kernels without a GPU, inside the engine's interpreter: what a compile notes of them, and the gates.

A kernel's way is source → PTX → cubin. `recording` notes it while the engine compiles. Later the source runs in
Triton's interpreter, its PTX in one of our own (`ptx`), and ptxas runs again.
"""
