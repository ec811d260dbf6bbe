"""`python -m tilelink.cli`: the same commands, as torchrun starts them."""

from tilelink.cli import app

app()
