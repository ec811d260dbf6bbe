"""`python -m tilelink`: the commands, where no script of that name is on the path."""

from tilelink.cli import app

app(prog_name="tilelink")
