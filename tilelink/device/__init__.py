"""The SHMEM vocabulary of emitted kernels, in Triton. Names and meaning are OpenSHMEM's.

Takes: pointers into this rank's symmetric memory, a rank number and the arena's context.
Gives: `peer` (translated peer pointers) and `nvshmem` (NVSHMEM's bitcode), one set of names.
Knows: triton and the targets it compiles for. Never knows: anything of tilelink, torch, tiles.
"""
