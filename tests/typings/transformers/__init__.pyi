"""To the type checker transformers is whatever it is used as: reading all of it takes half a minute."""

from typing import Any

def __getattr__(name: str) -> Any: ...
