"""NCCL's LL protocol: each 8 bytes hold 4 of data and the number of the call.

Who reads such a word sees from the number whether the data is this call's, so that nothing is signalled: no barrier, no
release that waits until all stores have arrived, no word that is set behind them. It costs twice the bytes.
`tilelink.mapping.protocols` decides which tensors come so.
"""

DATA = 4
"""Bytes of data in a word."""
MOST = 384 * 1024
"""Bytes that a rank gets from its peers by a tensor, up to which twice as many take less time than a release and a signal:
on two H200s 128 KiB take 0.9 µs less, and 512 KiB as long (docs/performance.md)."""
