"""A Llama of transformers, as it is, split over two ranks: it trains and generates as the whole one does.

    torchrun --nproc-per-node=2 examples/llama_tp.py

On GPUs products and their sums over the ranks are one kernel each; without GPUs, in processes with gloo, plain torch.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.run import main as torchrun
from transformers import LlamaConfig, LlamaForCausalLM

import tilelink
from tilelink.nn import parallelize

if not dist.is_torchelastic_launched():  # as `python examples/llama_tp.py`
    raise SystemExit(torchrun(["--standalone", "--nproc-per-node=2", __file__]))
device = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if device == "cuda" else "gloo")
if device == "cuda":
    torch.cuda.set_device(dist.get_rank())

torch.manual_seed(0)  # all ranks draw the same model
config = LlamaConfig(vocab_size=128, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8)
with torch.device(device):
    model: Any = parallelize(LlamaForCausalLM(config))  # by its own `tp_plan`
tokens = torch.arange(1, 65, device=device).repeat(2, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(20):
    loss = model(tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
made = model.generate(tokens[:1, :8], max_new_tokens=8, do_sample=False)
if tilelink.rank() == 0:
    print(f"loss {loss.item():.3f}; after 1 … 8: {made[0, 8:].tolist()}")
dist.destroy_process_group()
