"""What tile programs have to be by themselves, whatever they are placed on: how often they signal is known, and they wait before
they load and notify behind what they store."""

from tilelink.mapping.programs.flow import check_flow
from tilelink.mapping.programs.form import check_form

__all__ = ["check_flow", "check_form"]
