"""`python -m benchmarks.mutants.lowered_agreement`: mutants of lowered plans, by proof and by checker.

The two share no code. Where one refuses and the other does not, each such mutant is a row of the table. Where the checker accepts
it, the row says what becomes of it (`lowered_table`): `equivalent`, all that the mutant leaves out is ordered by signals of
others, which the checker follows from one to the next and the proof does not.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.harness import RESULTS, about, save
from benchmarks.mutants.lowered import mutants
from benchmarks.mutants.lowered_table import representative, verdict_on
from tilelink.ir.certificate import certificate
from tilelink.proof.check import check
from tools.check_certificate import judge

OUT = RESULTS / "mutants-lowered-cpu.json"


def main(
    sample: Annotated[int, typer.Option(help="Of the mutants, so many by chance.")] = 1500,
    seed: Annotated[int, typer.Option(help="Of that choice.")] = 0,
    out: Annotated[Path, typer.Option(help="The file of the table.")] = OUT,
) -> None:
    """Write how often the two say what, and each mutant on which they differ."""
    every = [(op, placed, plan, *m) for op, placed, plan in representative() for m in mutants(plan)]
    found: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for op, placed, plan, kind, where, mutant in random.Random(seed).sample(every, min(sample, len(every))):
        verdict, wrong = check(mutant), judge(json.loads(certificate(mutant)))
        proof = verdict.error.code if verdict.error is not None else "proved"
        found[f"{proof}, {'refused' if wrong else 'accepted'}"] += 1
        if verdict.ok == bool(wrong):
            says = verdict.error.message if verdict.error is not None else wrong[0]
            row = {"operator": op, "schedule": placed, "kind": kind, "where": where, "proof": proof, "says": says}
            rows.append(row if wrong else {**row, "accepted as": verdict_on(plan, mutant)})
    counts = {"mutants": len(every), "asked": sum(found.values()), "seed": seed, "judged differently": len(rows)}
    said = about(numpy=np.__version__, **counts, **{"proof and checker": dict(sorted(found.items()))})
    save(out, said, {"rows": rows})


if __name__ == "__main__":
    typer.run(main)
