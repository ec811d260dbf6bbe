"""What a lowered plan does, as tables over all ranks, tiles and turns, and the questions that they answer.

Takes: `ir.Lowered`. Gives: what is not written once, not signalled as often as expected, not taken once.
Knows: flags, buffers, boxes, numpy.
Never knows: partitions, views, engines, source text, torch, triton.
"""
