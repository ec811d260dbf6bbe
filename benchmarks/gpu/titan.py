"""On GPUs: a job of torchtitan as it is, with and without `tilelink.install()`.

    python -m benchmarks.gpu.titan --gpus 2 --out benchmarks/results

Needs torchtitan; 0.2.1 knows how torch 2.11 is asked for async tensor parallelism, 0.2.2 does not. Blocks of Llama 3 8B in bf16,
split over all GPUs as torchtitan splits it and compiled block by block; texts and tokenizer are made here. Each
contender is a job of its own:

    plain      no async tensor parallelism
    async      torch's own: `--parallelism.enable_async_tensor_parallel`
    installed  the same after `tilelink.install()`
    overlap    `plain` after `tilelink.install()`, with `tilelink.inductor.overlap()`

Losses must be those of `plain`. Tokens a second of one GPU are the median of the steps after the first ten.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.harness import ROOT, Row, apart, parser, write

CONTENDERS = ("plain", "async", "installed", "overlap")
TOLERANCE = 2e-2
LINE = re.compile(r"step: +(\d+) +loss: +([\d.]+) .*memory: +([\d.]+)GiB.*tps: ([\d,]+)")
COLOR = re.compile(r"\x1b\[[\d;]*m")


def assets(folder: Path) -> None:
    """A tokenizer of words, and texts in which each word follows from the one before, but for one in eight. Each has a folder: a
    data set is all that lies in its own."""
    tokens, texts = folder / "tokenizer", folder / "texts"
    tokens.mkdir()
    texts.mkdir()
    words = [f"w{n}" for n in range(4096)]
    vocabulary = {word: n for n, word in enumerate(["<s>", "</s>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(tokens / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}
    (tokens / "tokenizer_config.json").write_text(json.dumps(named))
    drawing = random.Random(0)
    with (texts / "data.json").open("w") as file:
        for _ in range(2000):
            at, text = drawing.randrange(4096), list[str]()
            for _ in range(1000):
                at = drawing.randrange(4096) if drawing.random() < 1 / 8 else (5 * at + 7) % 4096
                text.append(words[at])
            file.write(json.dumps({"text": " ".join(text)}) + "\n")


def job(contender: str, folder: Path, gpus: int, positions: int, layers: int, steps: int) -> Row:
    """Run one. `error`: the end of what it printed, if it failed."""
    options = {
        "model.name": "llama3", "model.flavor": "8B, some layers", "model.hf_assets_path": folder / "tokenizer",
        "job.dump_folder": folder, "training.dataset": "c4_test", "training.dataset_path": folder / "texts",
        "training.dtype": "bfloat16", "training.steps": steps,
        "training.local_batch_size": 1, "training.seq_len": positions, "optimizer.lr": 3e-5, "lr_scheduler.warmup_steps": 5,
        "parallelism.tensor_parallel_degree": gpus, "activation_checkpoint.mode": "none", "metrics.log_freq": 1, "debug.seed": 0,
        "experimental.custom_import": "benchmarks.gpu.titan_job",
    }  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={gpus}", "-m", "torchtitan.train"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command += ["--compile.enable"]
    if contender in ("async", "installed"):
        command += ["--parallelism.enable_async_tensor_parallel"]
    environment = os.environ | {"TITAN_CONTENDER": contender, "TITAN_LAYERS": str(layers)}
    row: Row = {"contender": contender, "positions": positions, "layers": layers}
    try:
        ended = subprocess.run(command, cwd=ROOT, env=environment, timeout=240, capture_output=True, text=True)
        printed, status = COLOR.sub("", ended.stdout + ended.stderr), ended.returncode
    except subprocess.TimeoutExpired as error:
        printed, status = COLOR.sub("", f"{(error.stderr or b'')!r}\ntook over 240 s"), 1
    found = {int(step): (loss, memory, tps) for step, loss, memory, tps in LINE.findall(printed)}
    if status or not found:
        return row | {"error": printed[-3000:]}
    settled = [float(tps.replace(",", "")) for step, (_, _, tps) in found.items() if step > min(10, steps // 2)]
    report = re.search(r"REPORT\n(.*)\nEND", printed, re.DOTALL)
    return row | {
        "report": report[1].splitlines() if report else [],
        "losses": [float(loss) for loss, _, _ in found.values()],
        "tokens_s": statistics.median(settled),
        "gib": max(float(memory) for _, memory, _ in found.values()),
    }


def main() -> bool:
    made = parser(__doc__)
    made.add_argument("--gpus", type=int, default=2)
    made.add_argument("--positions", type=int, nargs="*", default=[4096, 8192])
    made.add_argument("--layers", type=int, default=8)
    made.add_argument("--steps", type=int, default=40)
    made.add_argument("--contenders", nargs="*", default=list(CONTENDERS), choices=CONTENDERS)
    given = made.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        assets(folder)
        for positions in given.positions:
            plain: Row | None = None
            for contender in given.contenders:
                row = job(contender, folder, given.gpus, positions, given.layers, given.steps)
                plain = plain or row
                row["off"] = apart(row.get("losses", []), plain.get("losses", []))
                row["ok"] = row["off"] is not None and row["off"] <= TOLERANCE
                rows.append(row)
                said = (
                    row.get("error") or f"{row['tokens_s']:9.0f} tokens/s, {row['gib']:.1f} GiB, off {row['off']:.1e}"
                )
                print(f"{positions:6} {contender:10} {said}", flush=True)
                write(given.out, "titan", rows, gpus=given.gpus, backend="peer")
    return all(row["ok"] for row in rows)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
