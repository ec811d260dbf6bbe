"""The benchmark: an operator among its contenders, side by side in one run.

Takes: an operator of the library and cases. Gives: rows of times, tables and files of them.
Knows: every operator's rivals (cuBLAS, NCCL, what PyTorch has), and all rooms below.
Never knows: how an operator does its work.
"""

from tilelink.bench.contest import OURS
from tilelink.bench.report import file_name, report, save, subjects_sheet, summary
from tilelink.bench.rows import Row
from tilelink.bench.running import Options, bench, case_of, commit
from tilelink.bench.subjects import SUBJECTS, BenchCase, Subject, sweep

__all__ = [
    "OURS",
    "SUBJECTS",
    "BenchCase",
    "Options",
    "Row",
    "Subject",
    "bench",
    "case_of",
    "commit",
    "file_name",
    "report",
    "save",
    "subjects_sheet",
    "summary",
    "sweep",
]
