"""What a lowered plan does, as tables in numpy over all ranks, tiles and turns, and the questions that they answer."""
