"""What tile programs have to be by themselves, whatever they are placed on: they wait before they load and notify behind what
they store. (That the number of their signals is known without data, the frontend has seen.)"""

from tilelink.mapping.programs.flow import check_flow

__all__ = ["check_flow"]
