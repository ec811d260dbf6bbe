"""What lies past an edge of a block, and which reductions it would change."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.frontend.harness import HEADER
from tests.frontend.ops import captured
from tests.selection import table
from tilelink import TilelinkError
from tilelink.frontend.rehearsal.drawn import SIZES, TILE

BODY = """
m = tl.tile_id(out)
x = tl.tile_load(a, m)
said = tl.tile_load(a, m, other=-1.0)
filled = tl.tile_load(a, m, other=0.0)
lost = tl.tile_load(a, m, other=float("-inf"))
length = said.shape[1]
count, columns = said.shape
w = tl.tile_load(b)
eight = tl.tile_load(c, m)
height, eights = eight.shape
mean = tl.sum(x, 1) / tl.size(a, 1)
k = tl.tile_range(a, axis=1)
ends = tl.tile_load(e, m)
row = tl.sum(x, 0)
one = 1
pair = (tl.exp(x), x)
first, second = tl.broadcast(tl.exp(x), x)
wide, narrow = tl.split(tl.join(tl.exp(x), x))
value = {}
tl.tile_store(out, m, value)
"""

CHANGED = [
    "tl.max(x, 1)",
    "tl.max(x, axis=-1)",
    "x.max(1)",
    "tl.min(x * 2.0, 1)",
    "tl.argmax(x, 1).to(tl.float32)",
    "tl.max(tl.dot(x, w), 1)",
    "tl.max(tl.trans(x), 0)",
    "tl.sum(tl.exp(x), 1)",
    "tl.sum(x + 1.0, 1)",
    "tl.sum((x - mean[:, None]) * (x - mean[:, None]), 1)",
    "tl.sum((x == 0).to(tl.float32), 1)",
    "tl.sum((x >= 0).to(tl.float32), 1)",
    "tl.sum(1.0 / x, 1)",
    "tl.max(tl.max(x, 1, keep_dims=True), 0)[None] + mean",
    "tl.max(x, None) + mean",
    "tl.sum(x, 1) / x.shape[1]",
    "tl.sum(said, 1) / said.shape[1]",
    "tl.sum(said, 1) / (said.shape[1] - 1)",
    "tl.sum(said, 1) / length",
    "tl.sum(said, 1) / columns",
    "tl.sum(said.to(tl.int32), 1) // length",
    "tl.sum(said, 1) / (2 * tl.tile_shape(out)[0])",
    "tl.max(tl.abs(x) * -2.0, 1)",
    "tl.max(-tl.abs(x), 1)",
    "tl.max(1.0 - tl.abs(x), 1)",
    "tl.max(1.0 / tl.abs(x), 1)",
    "tl.min(tl.abs(x), 1)",
    "tl.sum(tl.abs(x) + 1.0, 1)",
    "tl.sum(tl.maximum(tl.abs(x), 1e-6), 1)",
    "tl.max(tl.abs(x) * x, 1)",
    "tl.sum((~(x > 0)).to(tl.int32), 1).to(tl.float32)",
    "tl.sum(tl.where(x > 0, x, 1.0), 1)",
    "tl.sum(tl.where(x >= 0, 1.0, 2.0), 1)",
    "tl.sum(tl.cumsum(x, 1), 1)",
    "tl.sum(tl.cumsum(tl.exp(x), 1, reverse=True) * x, 1)",
    "tl.sum(tl.cumprod(x, 1, reverse=True), 1)",
    "tl.max(tl.cumprod(tl.abs(x) - 1.0, 1), 1)",
    "tl.max(tl.cumprod(tl.abs(x) - 1.0, 0), 1)",
    "tl.sum(tl.where((tl.cumsum(tl.size(a, 1) - 1 - k, 0) >= 0)[None, :], tl.exp(x), 0.0), 1)",
    "tl.sum(tl.where((tl.cumprod(k, 0) < tl.size(a, 1))[None, :], tl.exp(x), 0.0), 1)",
    "tl.sum(tl.clamp(x, 1.0, 6.0), 1)",
    "tl.sum(tl.fma(x, x, mean[:, None]), 1)",
    "tl.sum(tl.exp(x) if tl.size(a, 0) > 2 else x, 1)",
    "tl.sum(tl.trans(tl.exp(x), 1, 0), 0)",
    "tl.sum(tl.permute(tl.exp(x), (1, 0)), 0)",
    "tl.sum(tl.exp(x).T, 0)",
    "tl.sum(tl.dot(tl.exp(x), tl.exp(w)), 1)",
    "tl.sum(tl.exp(x[:, :, None]), 1)[:, 0]",
    "tl.sum(tl.sum(tl.expand_dims(tl.exp(x), 2), 2), 1)",
    "tl.sum(tl.broadcast_to(tl.exp(x), x.shape), 1)",
    "tl.sum(tl.zeros_like(x) + 1.0, 1)",
    "tl.sum(tl.full(x.shape, 1.0, tl.float32), 1)",
    "tl.xor_sum((x < 1).to(tl.int32), 1).to(tl.float32)",
    "tl.sum(tl.reshape(tl.exp(x), (8, 16, 1)), 1)[:, 0]",
    "tl.max(tl.reshape(x, 8, 16), 1)",
    "tl.max(x.reshape(16, 8), 0)",
    "tl.max(tl.view(x, (8, 16)), 1)",
    "tl.max(tl.ravel(x), 0) + mean",
    "tl.flip(mean, 0)",
    "tl.max(tl.abs(x) * mean[:, None], 1)",  # which may be negative
    "tl.sum(tl.reshape(x, (8, 16)), 1)",
    "tl.sum(tl.where(tl.tile_mask(a, m), wave(x), 0.0), 1)",  # of rows
    "tl.max(said, 1)",
    "greatest(said)",
    "tl.reduce(said, 1, larger)",
    "tl.max(tl.where(k[None, :] < tl.size(a, 1), x, -1.0), 1)",
    "tl.max(filled, 1)",
    "tl.max(tl.maximum(lost, 2 * x), 1)",
    "tl.sum(1.0 - (k < tl.size(a, 1))[None, :].to(tl.float32) + x, 1)",
    "tl.sum(tl.softmax(lost, 1) * tl.log(tl.softmax(lost, 1)), 1)",
    "tl.sum(tl.softmax(lost, 1) - 1.0 / tl.size(a, 1), 1)",
    "tl.sum(x, 1) + x.shape[1] * mean",
    "tl.sum(x, 1) + tl.full(mean.shape, x.shape[1], tl.float32)",
    "tl.sum(x * tl.log(1.0 - tl.exp(x)), 1)",
    "tl.sum(tl.rand(3, k), 0) + mean",
    "tl.max(tl.cat(row, row, can_reorder=True), 0) + mean",
    "tl.max(tl.gather(x, tl.zeros(x.shape, tl.int32) + 7, 1), 1)",
    "greatest(x)",
    "greatest(x) if tl.size(a, 0) > 2 else mean",
    "tl.sum((tl.exp(x) if tl.size(a, 0) > 2 else x, x)[0], 1)",
    "tl.swizzle2d(x, x, 2, 2, 2)[0]",
    "tl.sum(active(x, MODE), 1)",
    "tl.sum(active(x, 'gelu'), 1)",
    "tl.sum(tl.maximum(x + MARGIN, 0.0), 1)",
    "tl.sum((tl.where((k < tl.size(a, 1))[None, :], x, 0.0) - mean[:, None] if CENTERED else x) * (1.0 if MASKED else x), 1)",
    "tl.max(tl.where((k >= 128)[None, :], x, -1e30), 1)",
    "tl.sum(tl.where((k % 16 == 15)[None, :], tl.exp(x), 0.0), 1)",
    "tl.argmax(tl.ravel(lost), 0) + mean",
    "tl.argmax(tl.flip(lost, 1), 1).to(tl.float32)",
    "tl.argmax(tl.reshape(tl.trans(tl.join(lost, tl.cos(lost)), 0, 2, 1), (x.shape[0], 2 * x.shape[1])), 1).to(tl.float32)",
    "tl.max(tl.minimum(x, tl.cos(lost)), 1)",
    "tl.min(tl.tile_load(a, m, other=100.0), 1)",
    "tl.sum(tl.where(k[None, :] <= (ends + 1)[:, None], tl.exp(x), 0.0), 1)",
    "tl.sum(tl.where(2 * k[None, :] < ends[:, None], tl.exp(x), 0.0), 1)",
    "tl.sum(tl.where(k[None, :] // 4 == ends[:, None], tl.exp(x), 0.0), 1)",
    "tl.sum(tl.where(tl.abs(k[None, :] - ends[:, None]) <= 2, tl.exp(x), 0.0), 1)",
    "tl.sum(tl.where(tl.size(a, 1) - 1 - k[None, :] < ends[:, None], tl.exp(x), 0.0), 1)",
    "tl.max(tl.arange(0, tl.ravel(lost).shape[0]) * (tl.ravel(lost) > 0), 0) + mean",
    "tl.sum((tl.tile_load(d, m).to(tl.int32) - 1) // 4 + 1, 1).to(tl.float32)",
    "tl.log(tl.sum(tl.where((k < tl.size(a, 1))[None, :], tl.exp(x - tl.max(x, 1)[:, None]), 0.0), 1))",
    "mean * (1 if tl.max(tl.max(x, 1), 0) > -0.5 else 2)",
    "mean + tl.max(tl.sum(x, 1) - tl.max(tl.abs(x) - 1.0, 1), 0)",
    "tl.max(input=x, axis=1)",
    "tl.sum(tl.where(condition=x > 0, x=x, y=1.0), 1)",
    "tl.sum(tl.topk(x, 4), 1)",
    "tl.sum(tl.fdiv(1.0, x), 1)",
    "tl.sum(tl.expand_dims(tl.exp(x), axis=2), 1)[:, 0]",
    "tl.sum(x * tl.log(x), 1)",
    "tl.sum(x * (1.0 / x), 1)",
    "tl.max(tl.sin(tl.abs(x)), 1)",
    "tl.max(tl.cumsum(tl.abs(x) + 1.0, 1), 1)",
    "tl.sum(tl.dot(x, tl.log(w)), 1)",
    "tl.max(tl.where(k[None, :] >= 3, x, -1e30), 1)",
    "tl.sum(tl.where((k != 3)[None, :], tl.exp(x), 0.0), 1)",
    "tl.max(tl.where(mean[:, None] > x, x, 0.1 * x), 1)",
    "tl.max(tl.tile_load(a, (m, k)), 1)",
    "tl.sum(tl.where(tl.tile_mask(a, m, stop=3), 0.0, tl.exp(x)), 1)",
    "tl.sum(filled - mean[:, None], 1)",
    "tl.sum(tl.exp(filled), 1)",
    "tl.sum(filled + tl.exp(x), 1)",
    "tl.sum(tl.where((k < tl.size(a, 1))[None, :], x, 0.0) - mean[:, None], 1)",
    "tl.sum(k, 0).to(tl.float32) + mean",
    "tl.max(x + 0.1 * k[None, :], 1)",
    "tl.sum(tl.exp(x - 0.1 * k[None, :]), 1)",
    "tl.sum(tl.where(k[None, :] % 2 == 0, x, 1.0), 1)",
    "tl.reduce(x, 1, larger)",
    "tl.reduce(x, axis=1, combine_fn=larger)",
    "tl.histogram(tl.ravel(x).to(tl.int32), 8).to(tl.float32)",
    "tl.sum(wave(x), 1)",
    "tl.sum(x + wave(x + mean[:, None]), 1)",
    "tl.max(tl.where(k[None, :] <= tl.size(a, 1), x, -1e30), 1)",
    "tl.max(tl.where(k[None, :] < tl.size(a, 1) + 1, x, -1e30), 1)",
    "tl.max(tl.where(k[None, :] < 2 * tl.size(a, 1), x, -1e30), 1)",
    "tl.max(tl.where(k[None, :] - 1 < tl.size(a, 1), x, -1e30), 1)",
    "tl.max(tl.where(k[None, :] < 16, x, -1e30), 1)",
    "tl.max(tl.where(k[None, :] < tl.size(a, 0), x, -1e30), 1)",
    "tl.max(tl.where(k[None, :] < tl.tile_end(a, m), x, -1e30), 1)",
    "tl.max(tl.where(k[None, :] <= tl.tile_range(a, m)[:, None], x, -1e30), 1)",
    "tl.max(tl.where(tl.abs(k - 3)[None, :] < tl.size(a, 1), x, -1e30), 1)",
    "tl.max(tl.where((k ^ 1)[None, :] < tl.size(a, 1), x, -1e30), 1)",
    "tl.max(tl.where(tl.arange(0, x.shape[1])[None, :] < x.shape[1], x, -1e30), 1)",
    "tl.sum((x + 1) * (k[None, :] <= tl.size(a, 1)), 1)",
    "tl.sum(tl.where((k[None, :] < tl.size(a, 1)) | (x == 0), tl.exp(x), 0.0), 1)",
    "tl.sum(tl.where((k[None, :] < tl.size(a, 1)) | (mean > 0)[:, None], tl.exp(x), 0.0), 1)",
    "tl.sum(tl.where(k[None, :] < tl.size(a, 1), x, tl.exp(x)), 1)",
    "tl.sum((tl.exp(x), x)[0], 1)",
    "tl.sum([x, tl.exp(x)][1], 1)",
    "tl.sum(tl.exp(x), one)",
    "tl.max(x, one)",
    "tl.sum(pair[0], 1)",
    "tl.sum(first, 1)",
    "tl.sum(wide, 1)",
    "tl.sum(tl.cumsum(tl.exp(x), one, reverse=True), 1)",
    "tl.sum(tl.dot(x, tl.where(k[:, None] <= k[None, :], 1.0, 0.0)), 1)",
    "tl.sum(tl.full([x.shape[1]], 0.0, tl.float32) + 1.0, 0) + mean",
    "tl.max(tl.dot(tl.exp(x), tl.full([x.shape[1], 16], 1.0, tl.float32)), 1)",
    "tl.sum(tl.tile_load(a, (m, k - 1)), 1)",
    "tl.sum(x * tl.log(tl.abs(x)), 1)",
    "tl.sum(x * (tl.log(tl.abs(x)) + 1.0), 1)",
    "tl.max(tl.abs(tl.log(tl.abs(x))), 1)",
    "tl.max(x + row, 1)",
    "tl.sum(tl.exp(x * row), 1)",
    "tl.sum(tl.where(k >= 2, tl.exp(x), 0.0), 1)",
    "tl.sum(tl.where((mean > 0)[:, None], tl.exp(x), 0.0), 1)",
    "tl.sum(tl.where(tl.size(a, 1) > 2, tl.exp(x), 0.0), 1)",
    "tl.max(tl.where((mean != 0)[:, None], x, -1e30), 1)",
    "tl.sum(tl.where(x > 0, x, mean[:, None]), 1)",
    "tl.max(tl.tile_load(a, (m, (row * 2).to(tl.int32))), 1)",
    "tl.max(tl.tile_load(a, (m, tl.arange(0, 16))), 1)",
    "tl.sum(said, 1) * (1.0 / said.shape[1])",
    "tl.sum(x - tl.sum(x, 1, True) / tl.size(a, 1), 1)",
    "tl.sum(tl.where(((k & 1) == 0)[None, :], tl.exp(x), 0.0), 1)",
    "tl.max(-tl.log(tl.abs(x)), 1)",
    "tl.max(tl.log(tl.abs(x)) * tl.log(tl.abs(x)), 1)",
    "tl.sum(tl.broadcast_to(mean[:, None], x.shape), 1)",
    "tl.max(tl.permute(x[:, None, :], (0, 2, 1)), 1)[:, 0]",
    "tl.max(tl.softmax(filled, 1), 1)",
    "tl.sum((k[None, :] >= tl.size(a, 1)).to(tl.float32), 1)",
    "tl.sum(tl.where(k[None, :] >= tl.size(a, 1), tl.exp(x), x), 1)",
]
ALIKE = [
    "tl.sum(tl.flip(x, 1), 1)",
    "tl.sum(tl.softmax(filled, 1), 1)",
    "tl.sum(active(x, 'relu'), 1)",
    "tl.sum(powers(x), 1)",
    "tl.sum(tl.reshape(eight, (eight.shape[0], eight.shape[1] // 32, 32)), 2)[:, 0]",
    "tl.sum(tl.zeros(tl.tile_shape(out) + (4,), tl.float32), 1) + mean",
    "tl.topk(lost, 4, 1)[:, 0]",
    "tl.sum(tl.tile_load(a, (m, tl.arange(0, 64))) * (tl.arange(0, 64) < tl.size(a, 1))[None, :], 1)",
    "tl.max(x, 1) * 0 + mean",
    "tl.sum(tl.floor(x / 3.0 + 0.5), 1)",
    "tl.max(x * x, 1)",
    "tl.max(tl.maximum(x, 0.0), 1)",
    "tl.sum(x / (1.0 + tl.exp(-x)), 1)",
    "tl.sum(tl.where(tl.abs(x) < 1.0, 0.5 * x * x, tl.abs(x) - 0.5), 1)",
    "tl.max(tl.abs(x) / 3.0, 1)",
    "tl.sum(tl.softmax(lost, 1), 1)",
    "tl.max(tl.where(k[None, :] == 0, x, lost), 1)",
    "tl.max(lost, 1)",
    "greatest(lost)",
    "tl.sum(tl.where(k[None, :] < ends[:, None], tl.exp(x), 0.0), 1)",
    "tl.sum(tl.where(k[None, :] == ends[:, None], tl.exp(x), 0.0), 1)",
    "tl.sum(tl.where((k[None, :] - ends[:, None] >= 0) & (k[None, :] - ends[:, None] < ends[:, None]), tl.exp(x), 0.0), 1)",
    "tl.reduce(lost, 1, larger)",
    "tl.max(tl.abs(filled), 1)",
    "tl.reduce(tl.abs(x), 1, larger)",
    "greatest(tl.abs(x))",
    "tl.sum(tl.where(~(k[None, :] < tl.size(a, 1)), x, tl.exp(x)), 1)",
    "tl.sum(x * row, 1)",
    "tl.sum(x + row, 1)",
    'tl.max(tl.where(k[None, :] >= tl.size(a, 1), float("-inf"), x), 1)',
    "tl.sum(tl.where(k[None, :] >= tl.size(a, 1), 0.0, tl.exp(x)), 1)",
    "tl.sum(tl.where(k[None, :] > tl.size(a, 1) - 1, 0.0, tl.exp(x)), 1)",
    "tl.sum(tl.where((mean > 0)[:, None], x, 0.0), 1)",
    "tl.sum(x - tl.sum(x, 1, False)[:, None] * x, 1)",
    "tl.sum(x, 1)",
    "tl.sum(x * x, 1)",
    "tl.sum(-x / 2.0, 1)",
    "tl.sum(tl.abs(x).to(tl.float32), 1)",
    "tl.sum((x > 0).to(tl.float32), 1)",
    "tl.sum(tl.exp(x) * x, 1)",
    "tl.sum(x * k[None, :], 1)",
    "tl.sum(x - x, 1)",
    "tl.max(eight, 1)",
    "tl.sum(eight, 1) / eights",
    "tl.cumsum(mean, 1)",  # there is no such axis, as Triton says
    "tl.max(tl.where(k[None, :] < tl.size(a, 1), x, -1e30), 1)",
    "tl.sum(tl.where(k[None, :] < tl.size(a, 1), x - mean[:, None], 0.0), 1)",
    "tl.max(x + tl.where(k < tl.size(a, 1), 0.0, -1e30)[None, :], 1)",
    "tl.max(tl.abs(x) * 2.0, 1)",
    "tl.max(tl.abs(x) / 448.0, 1)",
    "tl.max(tl.abs(x) + 1e-6, 1)",
    "tl.max(tl.maximum(tl.abs(x), 1e-6), 1)",
    "tl.max(tl.log(tl.abs(x)), 1)",
    "tl.max((x > 0).to(tl.float32), 1)",
    "tl.max(tl.where(x > 0, k[None, :], 0), 1).to(tl.float32)",
    "tl.max(tl.where(x > 0, k[None, :], -1), 1).to(tl.float32)",
    "tl.min(tl.where(x > 0, k[None, :], 9999), 1).to(tl.float32)",
    "tl.max(tl.where(x > 0, x, -1e30), 1)",
    "tl.sum(tl.where(x != 0, 1.0 / x, 0.0), 1)",
    "tl.sum(tl.where(x > 0, x, 0.01 * x), 1)",
    "tl.sum(tl.where(x == x, x, 0.0), 1)",
    "tl.sum(tl.where(x >= 0, x, 0.0), 1)",
    "tl.sum(tl.clamp(x, 0.0, 6.0), 1)",
    "tl.sum(tl.clamp(x, -1.0, 6.0), 1)",
    "tl.max(tl.abs(x - 0.0), 1)",
    "tl.sum(tl.where(tl.tile_mask(a, m) , x, 0.0), 1)",
    "tl.sum(tl.where((k[None, :] < tl.size(a, 1)) & (x > 0), 1.0, 0.0), 1)",
    "tl.sum(tl.where((k[None, :] < tl.size(a, 1)) & (x >= 0), 1.0, 0.0), 1)",
    "tl.max(tl.where((k[None, :] < tl.size(a, 1)) & (x >= 0), x, -1.0), 1)",
    'tl.sum(tl.exp(tl.where(k[None, :] < tl.size(a, 1), x, float("-inf"))), 1)',
    "tl.sum(tl.cumsum(x, 1) * x, 1)",
    "tl.sum(tl.cumsum(x, 1, reverse=True), 1)",
    "tl.max(tl.exp(tl.abs(x)), 1)",
    "tl.max(tl.max(tl.abs(x), 1, keep_dims=True), 1)",
    "tl.sum(tl.dot(x, w), 1)",
    "tl.sum(tl.dot(tl.exp(x), w), 1)",
    "tl.sum(tl.fma(x, x, x), 1)",
    "tl.max(tl.sqrt(tl.abs(x)), 1)",
    "tl.sum(x if tl.size(a, 0) > 2 else -x, 1)",
    "tl.max(tl.abs(x.to(tl.float32)), 1)",
    "tl.max(tl.abs(x) + tl.abs(x), 1)",
    "tl.max(tl.abs(x) * tl.abs(x), 1)",
    "tl.sum(((x > 0) & (x < 2)).to(tl.int32), 1).to(tl.float32)",
    "tl.sum(((x > 0) | (x < -2)).to(tl.int32), 1).to(tl.float32)",
    "tl.max(((x > 0) | (x < -2)).to(tl.int32), 1).to(tl.float32)",
    "tl.max(tl.reshape(eight, (eight.shape[0], 2, 4)), 2)[:, 0]",
    "tl.sum(tl.where(k[None, :] % 2 == 0, x, 0.0), 1)",
    "tl.sum(tl.where(k + 1 < tl.size(a, 1), k, 0), 0).to(tl.float32) + mean",
    "tl.sum(tl.where(k[None, :] * 2 < tl.size(a, 1), x - mean[:, None], 0.0), 1)",
    "tl.sum(x * (0.1 * k[None, :]), 1)",
    "tl.reduce(eight, 1, larger)",
    "tl.sum(tl.where((k < tl.size(a, 1))[None, :], wave(x), 0.0), 1)",
    "tl.sum(wave(eight), 1)",
    "tl.sum(wave(mean[:, None]) * x, 1)",
    "tl.max(tl.where(k[None, :] <= tl.size(a, 1) - 1, x, -1e30), 1)",
    "tl.max(tl.where(k[None, :] < tl.minimum(tl.size(a, 1), 5), x, -1e30), 1)",
    "tl.max(tl.where(k[None, :] < tl.size(a, 1) // 2, x, -1e30), 1)",
    "tl.max(tl.where((k[None, :] < tl.size(a, 1)) & (k[None, :] <= tl.tile_range(a, m)[:, None]), x, -1e30), 1)",
    "tl.max(tl.where(k[None, :] == 0, x, -1e30), 1)",
    "tl.sum(tl.where(tl.arange(0, x.shape[1])[None, :] < tl.size(a, 1), tl.exp(x), 0.0), 1)",
    "tl.sum((x, x)[0], 1)",
    "tl.sum(x, one)",
    "tl.max(tl.where(k[None, :] < tl.sum(x, 1)[:, None], x, -1e30), 1)",
    "tl.max(tl.log(tl.abs(x)) + 1.0, 1)",
    "tl.sum(tl.where((k[None, :] < tl.size(a, 1)) | (x > 0), x, 0.0), 1)",
]


HELPERS = f"""import triton
{HEADER}
@triton.jit
def larger(a, b):
    return tl.maximum(a, b)

@triton.jit
def wave(x):
    return tl.cos(x)

@triton.jit
def active(x, MODE: tl.constexpr):
    if MODE == "relu":
        x = tl.maximum(x, 0.0)
    elif MODE == "sigmoid":
        x = tl.sigmoid(x)
    elif MODE == "gelu":
        x = x + 0.5
    return x

@triton.jit
def powers(x, scale: tl.constexpr = 2 ** -1):
    return x * scale

@triton.jit
def greatest(x, axis: tl.constexpr = 1):
    found = tl.max(x, axis)
    return found

"""


def program(expression: str) -> Any:
    given = 'a, b, c, d, e, out, *, MODE: str = "relu", MARGIN: float = 0.0, CENTERED: bool = True, MASKED: bool = True'
    return captured("M K, K N, M 8, M K i32, M i32 -> M", given, BODY.format(expression), HELPERS)


@table("expression", CHANGED)
def test_what_lies_past_an_edge_would_change_it(expression: str) -> None:
    with pytest.raises(TilelinkError, match="TL143"):
        program(expression)


@table("expression", ALIKE)
def test_what_lies_past_an_edge_does_not_count(expression: str) -> None:
    assert program(expression)


@table(
    "lines, changed",
    [
        ("if tl.size(a, 0) > 2:\n    x = tl.exp(x)", True),
        ("for _ in range(2):\n    x = tl.exp(x)", True),
        ("for _ in range(2):\n    x = x * x", False),
        ("if tl.size(a, 0) > 2:\n    x = -x", False),
        ("if tl.size(a, 0) > 2:\n    x = said\nx = tl.exp(x)", True),
        ("x = tl.exp(said if tl.size(a, 0) > 2 else x)", True),
        ("x = tl.zeros(x.shape, tl.float32)\nfor _ in range(2):\n    x += said\nx = tl.exp(x)", True),
        ("if tl.size(a, 0) > 2:\n    x = tl.exp(x) * (k < tl.size(a, 1))[None, :]", False),
    ],
)
def test_what_paths_make_of_what_lies_past_an_edge(lines: str, changed: bool) -> None:
    body = BODY.replace("value =", f"{lines}\nvalue =").format("tl.sum(x, 1)")
    if changed:
        with pytest.raises(TilelinkError, match="TL143"):
            captured("M K, K N, M 8, M K i32, M i32 -> M", "a, b, c, d, e, out", body)
    else:
        assert captured("M K, K N, M 8, M K i32, M i32 -> M", "a, b, c, d, e, out", body)


@table("loop", ["for i in range(4):", "if tl.size(a, 0) > 2:"])
def test_a_tile_longer_than_its_axis_ends_past_it_also_where_a_program_counts(loop: str) -> None:
    """Loops to a constant are rehearsed with axes that are longer than that, whose first tile is none that ends past an edge."""
    first = f"m, k = tl.tile_id(out)\nx = tl.tile_load(a, (m, k))\n{loop}\n    x += 1\n"
    wrong = [
        "top = tl.tile_range(out, m)[:, None] < 2\ntl.tile_store(out, (m, k), tl.flip(x, 0), mask=top)",
        "if tl.tile_begin(out, m) == 0:\n    x += tl.max(x, 1)[:, None]\ntl.tile_store(out, (m, k), x)",
    ]
    for lines in wrong:
        with pytest.raises(TilelinkError, match="TL143"):
            captured("M K -> M K", "a, out", first + lines)
    right = "x += tl.max(tl.abs(tl.tile_load(a, (m, k))), 1)[:, None]\ntl.tile_store(out, (m, k), x)"
    assert captured("M K -> M K", "a, out", first + right)


@table(
    "line, changed",
    [
        ("tl.tile_store(out, (to, k), x)", True),
        ("tl.tile_push_data(out, (to + 1, k), x)", True),
        ("tl.tile_store(out, (tl.where(to > 2, to, 0), k), x)", True),
        ("tl.tile_store(out, (tl.tile_load(order, m, other=0), k), x)", True),
        ("tl.tile_store(out, (m, k), tl.flip(x, 1))", True),
        ("tl.tile_store(out, (m, k), x.shape[0])", True),
        ("tl.tile_store(out, (tl.where(to > 2, tl.cumsum(to) - 1, -1), k), x)", False),
        ("tl.tile_store(out, (tl.cumsum(to) - 1, k), x)", True),
        ("tl.tile_store(out, (said, k), x)", False),
        ("tl.tile_store(out, (tl.tile_range(a, m), k), x)", False),
        ("tl.tile_store(out, (to, k), x, mask=(tl.tile_range(a, m) < tl.size(a, 0))[:, None])", False),
        ("tl.tile_store(out, (to, k), x, mask=x > -9)", True),
        ("tl.tile_store(out, (m, k), tl.tile_load(a, (to, k)))", False),
    ],
)
def test_positions_past_an_edge_are_none_of_what_is_stored(line: str, changed: bool) -> None:
    body = f"""
m, k = tl.tile_id(a)
x = tl.tile_load(a, (m, k))
to = tl.tile_load(order, m)
said = tl.tile_load(order, m, other=-1)
{line}
"""

    def program() -> Any:
        return captured("M K, M i32 -> M K partial", "a, order, out", body)

    if changed:
        with pytest.raises(TilelinkError, match="TL143"):
            program()
    else:
        assert program()


@tilelink.program("M K -> M K")
def soften(x: Any, out: Any) -> None:
    m = tl.tile_id(out)
    tl.consumer_tile_wait(x, m)
    rows = tl.tile_load(x, m, other=float("-inf"))
    weight = tl.exp(rows - tl.max(rows, 1)[:, None])
    tl.tile_store(out, m, weight / tl.sum(weight, 1)[:, None])


@table(
    "position, refused",
    [
        ("(tl.tile_range(out, m) - 1) % tl.size(a, 0)", True),
        ("(tl.tile_range(out, m) - 3) // 2 + 2", True),
        ("(tl.tile_range(out, m) - 1 + tl.size(a, 0)) % tl.size(a, 0)", False),
        ("tl.where((tl.tile_range(out, m) - 2) % 2 == 0, tl.tile_range(out, m), 0)", False),
        ("tl.where(tl.tile_range(out, m) > 0, (tl.tile_range(out, m) - 1) % tl.size(a, 0), 0)", False),
        ("tl.tile_range(out, m) + (-shift) // 2 + 2", False),
        ("(tl.tile_load(order, m, other=-1) - 4) % 3", False),
        ("tl.tile_range(out, m) + (0, 0, 0)[shift - 1]", False),
        ("(tl.tile_range(out, m) - 4 + tl.size(a, 0)) % tl.size(a, 0)", False),
        ("tl.tile_range(out, m) + tl.cdiv(3 - tl.size(a, 0), 4)", True),
        ("tl.tile_range(out, m) + (40 - tl.tile_end(out, m)) // 8", True),
        ("tl.tile_range(out, m) + (1 - tl.rank()) % tl.num_ranks()", True),
    ],
)
def test_what_triton_rounds_otherwise_is_refused_where_it_is_another_number(position: str, refused: bool) -> None:
    body = f"m = tl.tile_id(out)\ntl.tile_store(out, m, tl.tile_load(a, {position}))"

    def program() -> Any:
        return captured("M, M i32 -> M", "a, order, out, *, shift: int = 3", body)

    if refused:
        with pytest.raises(TilelinkError, match="TL147"):
            program()
    else:
        assert program()


def test_an_index_and_a_limit_are_judged_by_what_comes_of_them() -> None:
    body = """
m = tl.tile_id(out)
i = tl.tile_range(out, m)
early = tl.where(i >= 3, tl.tile_load(a, (i - 3) // 2), 0.0)
for k in tl.tiles(a, axis=0, start=(tl.tile_begin(out, m) - 5) // 4 * 4):
    early += tl.sum(tl.tile_load(a, k), 0)
tl.tile_store(out, m, early)
"""
    assert captured("M -> M", "a, out", body)


MODE = 3


@tilelink.program("M K -> M")
def by_sign(x: Any, out: Any, *, sign: int = 1, mode: int = 0) -> None:
    m = tl.tile_id(out)
    least = tl.tile_load(x, m, other=float("-inf"))
    if sign < 0:
        least = tl.tile_load(x, m, other=float("inf"))
    total = tl.max(least * sign, 1)
    if mode == MODE:
        for k in tl.tiles(x, axis=1):
            total += tl.max(tl.tile_load(x, (m, k), other=float("-inf")), 1)
    tl.tile_store(out, m, total)


def test_a_side_is_rehearsed_with_constants_that_take_it() -> None:
    x = torch.rand(6, 48)

    @tilelink.operator("M K -> M", schedule={"by_sign": tilelink.sms(M=2, K=16)})
    def of(x: Any, *, sign: int = 1, mode: int = 0) -> Any:
        return by_sign(x, sign=sign, mode=mode)

    torch.testing.assert_close(of([x], sign=-1)[0], -x.amin(1))
    torch.testing.assert_close(of([x])[0], x.amax(1))
    with pytest.raises(TilelinkError, match="TL336"):
        of([x], mode=MODE)


@tilelink.program("M K -> M")
def scaled(x: Any, out: Any, *, scale: float = 1.0) -> None:
    m = tl.tile_id(out)
    tl.tile_store(out, m, tl.max(tl.tile_load(x, m, other=float("-inf")) * scale, 1))


def test_a_constant_of_another_sign_is_rehearsed() -> None:
    """Below 0 it makes the greatest of what is past an edge, and 0 makes no number of it, which a maximum leaves out."""
    x = torch.rand(6, 48)

    @tilelink.operator("M K -> M")
    def of(x: Any, *, scale: float) -> Any:
        return scaled(x, scale=scale)

    for scale in (2.0, 0.0):
        torch.testing.assert_close(of([x], scale=scale)[0], scale * x.amax(1))
    for _ in range(2):
        with pytest.raises(TilelinkError, match=r"TL143.*(?s:.)*scale=-0.5"):
            of([x], scale=-0.5)


def test_as_the_hint_says_it_is_right() -> None:
    """48 columns in a block of 64."""
    x = -1 - torch.rand(6, 48)
    operator = tilelink.operator("M K -> M K", name="softmax")(lambda x: soften(x))
    torch.testing.assert_close(operator(x), x.softmax(1))


@tilelink.program("M N -> M N")
def counting(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    both = (tl.tile_range(out, m)[:, None] < 3) & (tl.tile_range(out, n)[None, :] > 1)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) + tl.sum(both.to(tl.float32), 0)[None, :])


def test_an_edge_that_shows_only_where_another_axis_is_long() -> None:
    """Three rows are counted where there is one, in columns that a short axis does not have."""
    with pytest.raises(TilelinkError, match="TL143"):
        tilelink.operator("M N -> M N", name="counts")(lambda x: counting(x))([torch.zeros(1, 5)])


@pytest.mark.parametrize("axes", list(itertools.permutations(range(4), 2)), ids=str)
def test_each_axis_is_short_beside_each_long_one(axes: tuple[int, int]) -> None:
    assert any(sizes[axes[0]] < 3 and sizes[axes[1]] > TILE for sizes in SIZES)
