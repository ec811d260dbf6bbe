"""Operators that come in several forms, of which a call takes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tilelink


def in_form(name: str, form: str, usual: str, forms: Mapping[str, Any]) -> Any:
    """One of an operator's forms; by default, "", the `usual` one. Raises TL248, there is no such form."""
    if form and form not in forms:
        raise tilelink.TilelinkError("TL248", f"`{name}` has no form {form!r}", hint=f"it has {', '.join(forms)}")
    return forms[form or usual]
