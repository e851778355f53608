"""Each of these small wrong edits of a kernel must be caught, and the kernels as they are must pass the same judges.

    mutants/*.toml     file; then for each mutant the fault it stands for, the old text and the new
    judge              a few small launches against the specification, in the order of what they cost

A mutant is written to a folder of its own, as the interpreter reads a kernel from its file, and imported from there; a
CPU's loops are not compiled, but run by Python. Wrong addresses are real: a judge leaves room around what it hands out,
so that they hit nobody else's memory."""

import sys
import tomllib
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from minipaged.kernels import jit, sample_triton, write_kv
from minipaged.kernels.draw import cut_spec, pick_spec
from minipaged.kernels.fused_moe import fused_moe_spec, sort_by_expert
from minipaged.kernels.fused_moe_triton import Tiles as MoeTiles
from minipaged.kernels.narrow import widen_spec
from minipaged.kernels.paged_attention_triton import Tiles
from minipaged.kernels.rms_norm import add_rms_norm_spec, rms_norm_spec
from minipaged.kernels.rope import rope_spec
from minipaged.kernels.routing import route_spec
from minipaged.kernels.silu_mul import silu_mul_spec
from minipaged.kernels.write_kv import write_kv_cpu, write_kv_spec
from tests.kernels.asking import Ask, answers, draw_logits, run
from tests.kernels.guard import DEVICE, assert_close, guarded, on_threads, randn
from tests.kernels.pool import SPARE, World, far_apart, narrowed

KERNELS = Path(__file__).parent.parent.parent / "kernels"
FILES = {path.stem: tomllib.loads(path.read_text()) for path in sorted(Path(__file__).parent.glob("mutants/*.toml"))}
MUTANTS = [(name, mutant) for name, document in FILES.items() for mutant in document["mutant"]]
pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="a wrong address on a GPU ends the process; interpreted here")


def read(name, old="", new="", also=()):
    text = (KERNELS / FILES[name]["file"]).read_text()
    for was, becomes in [(old, new), *zip(also[::2], also[1::2], strict=True)]:
        assert not was or text.count(was) == 1, f"{name} holds {text.count(was)} times: {was}"
        text = text.replace(was, becomes) if was else text
    return text


def load(text, folder):
    path = folder / "mutant.py"
    path.write_text(text)
    spec = spec_from_file_location("minipaged.kernels.mutant", path)
    module = module_from_spec(spec)
    with patch.object(jit, "compiled", lambda **options: lambda loops: loops):
        spec.loader.exec_module(module)
    sys.modules.pop("minipaged.kernels.mutant", None)
    return module


def judge_paged_attention_triton(module):
    for world, tiles in [
        (World((13, 0, 5), (1, 1, 2), group_size=3, head_dim=24), None),
        (World((20,), (9,), 1, window=6), Tiles(16, 16, 1, 4, 1)),
        (World((45, 20), (1, 3), 1), Tiles(16, 16, 2, 4, 1)),
        (World((70,), (32,), 1), Tiles(64, 16, 1, 4, 1)),
        (World((2,), (5,), 1), None),
    ]:
        tensors = interleaved(world.tensors())
        out = world.attend(tensors, tiles, module.paged_attention)
        if world.query_lens > world.lens:
            assert (out[:3] == 0).all()
        else:
            assert_close(out, world.expected(tensors), 4.5)
    judge_window(module)
    judge_addresses(module)
    judge_narrow_pool(module)


def judge_narrow_pool(module):
    world = World((45, 20), (1, 3))
    tensors, scales, wide = narrowed(world.tensors(), torch.int8)
    tiles = Tiles(16, 16, 2, 4, 1)
    assert_close(world.attend(tensors, tiles, module.paged_attention, scales), world.expected(wide), 4.5)


def interleaved(tensors):
    """Keys and values with different strides."""
    q, keys, values, *rest = tensors
    return [q, keys, torch.stack((values, values), dim=1)[:, 0], *rest]


def judge_window(module):
    world = World((50,), (1,), 1, window=6)
    tensors = world.tensors()
    expected, tables = world.expected(tensors), tensors[3]
    tables[0, :5] = next(block for block in range(7 + SPARE) if block not in tables[0].tolist())  # all NaN
    assert_close(world.attend(tensors, None, module.paged_attention), expected, 4.5)


def judge_addresses(module):
    world = World((40,), (3,), num_kv_heads=1, block_size=16, dtype=torch.float16)
    q, *pool, tables, starts, lens = world.tensors()
    near = [t[tables[0, :3].long()] for t in pool]
    tables[0, :3] = torch.arange(3)
    far = [t.copy_(part) for t, part in zip(far_apart(2, *near[0].shape[1:]), near, strict=True)]
    expected = world.expected([q, *near, tables, starts, lens])
    assert_close(world.attend([q, *far, tables, starts, lens], None, module.paged_attention), expected, 4.5)


def judge_write_kv_triton(module):
    k, v = randn(5, 3, 24), randn(5, 7, 24, seed=1)[:, 2:5]
    v[2, 1, 5], v[3, 0, 23] = torch.inf, torch.nan
    pool = torch.full((64, 2, 3, 8, 24), float("nan"), device=DEVICE)
    expected, slots = pool.clone(), torch.tensor([9, -1, 0, 31, 16])
    for written, write in ((expected, write_kv_spec), (pool, module.write_kv)):
        write(k, v, written[30:34, 0], written[30:34, 1], slots)
    assert torch.equal(pool.view(torch.int32), expected.view(torch.int32))
    keys, values = far_apart(2, 1, 8, 16)
    k, v = randn(2, 2, 1, 16, dtype=torch.float16)
    module.write_kv(k, v, keys, values, torch.tensor([23, 8]))
    assert torch.equal(torch.stack((keys[2, :, 7], keys[1, :, 0])), k)
    judge_narrow_rows(module.write_kv)


def judge_narrow(module):
    with patch.object(write_kv, "narrow_row", module.narrow_row), np.errstate(invalid="ignore"):
        plain = {name: getattr(write_kv, name).py_func for name in ("write_all_narrow", "write_narrow", "mute_scales")}
        with patch.multiple(write_kv, **plain):
            judge_narrow_rows(write_kv_cpu)


def judge_narrow_rows(write):
    """Into the middle of a larger pool."""
    k, v = randn(6, 3, 24), 5 * randn(6, 7, 24, seed=1)[:, 2:5]
    v[2, 1, 5], v[3, 0, 23], k[0, 1, 3], k[4], v[4, 2] = torch.inf, torch.nan, -torch.inf, 1e-31, 0
    slots, rooms = torch.tensor([9, -1, 0, 31, 16, 7]), []
    for writer in (write_kv_spec, write):
        numbers, scales = torch.full((2, 12, 3, 8, 24), 77, dtype=torch.int8), torch.full((2, 12, 3, 8), 7.0)
        writer(k, v, *numbers[:, 4:8], slots, tuple(scales[:, 4:8]))
        rooms.append((widen_spec(numbers, scales).nan_to_num(99), scales.nan_to_num(99)))
    for expected, found in zip(*rooms, strict=True):
        assert torch.equal(found, expected)


def judge_rms_norm_triton(module):
    judge_small_rows(module.rms_norm)
    x, residual, weight = randn(5, 32).half()[:, :24], randn(5, 24, seed=1).half(), torch.ones(24).half()
    out, total = guarded(module.add_rms_norm, x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(out, add_rms_norm_spec(x, residual, weight, 1e-5)[0])


def judge_rms_norm(module):
    judge_small_rows(partial(on_threads, 3, module.rms_norm_cpu))
    x, residual, weight = randn(5, 28)[:, :24], randn(5, 32, seed=1)[:, :24], randn(24, seed=2)
    out, total = guarded(on_threads, 3, module.add_rms_norm_cpu, x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert_close(out, add_rms_norm_spec(x, residual, weight, 1e-5)[0], 16)


def judge_small_rows(rms_norm):
    x, weight = 1e-3 * randn(5, 7, 30)[:, 2:5, :24], randn(24, seed=1)  # so small that eps counts
    assert_close(guarded(rms_norm, x, weight, 1e-5), rms_norm_spec(x, weight, 1e-5), 16)


def judge_rope_triton(module):
    judge_turning(module.rope)


def judge_rope(module):
    judge_turning(partial(on_threads, 3, module.rope_cpu))


def judge_turning(rope):
    angles = 100 * randn(3, 1, 12, seed=1)
    x, cos, sin = randn(3, 23, 24)[:, 1:20], angles.cos(), angles.sin()
    assert_close(guarded(rope, x, cos, sin), rope_spec(x, cos, sin), 8)
    x = x.transpose(0, 1)[:3]
    assert_close(guarded(rope, x, cos, sin), rope_spec(x, cos, sin), 8)


def judge_silu_mul_triton(module):
    judge_gates(module.silu_mul)


def judge_silu_mul(module):
    judge_gates(partial(on_threads, 3, module.silu_mul_cpu))


def judge_gates(silu_mul):
    gate_up = randn(3, 50)[:, :46]
    assert_close(guarded(silu_mul, gate_up), silu_mul_spec(gate_up), 16)


def judge_draw(module):
    weights = torch.stack([draw_logits(kind, 40, seed) for seed in range(3) for kind in ("spread", "steps", "flat")])
    weights = (weights - weights.amax(-1, keepdim=True)).exp()
    weights[:, 5] = torch.tensor(0.5).nextafter(torch.tensor(0.0))
    for min_p, top_k, top_p in [(0.0, 7, 1.0), (0.0, 0, 0.6), (0.5, 38, 1.0), (0.1, 9, 0.8), (0.0, 3, 0.99)]:
        asked = [torch.tensor([x] * 9) for x in (min_p, top_k)] + [torch.tensor([top_p] * 9, dtype=torch.float64)]
        assert torch.equal(on_threads(3, module.cut_cpu, weights.clone(), *asked), cut_spec(weights, *asked))
    two_blocks, alone = torch.nn.functional.pad(weights, (100, 171)), torch.ones(9, dtype=torch.int64)
    only_top_k = [torch.zeros(9), alone, alone.double()]
    assert torch.equal(module.cut_cpu(two_blocks.clone(), *only_top_k), cut_spec(two_blocks, *only_top_k))
    weights[3, 9] = -torch.nan
    left = module.cut_cpu(weights.clone(), *asked[:2], torch.ones(9, dtype=torch.float64))
    assert left[3, 9].isnan()
    wide = torch.nn.functional.pad(weights.repeat(1, 7), (1, 30))
    for number in (0.0, 0.4, 0.6, 0.8, 1 - 2**-52):
        numbers = torch.full((9,), number, dtype=torch.float64)
        assert torch.equal(on_threads(3, module.pick_cpu, wide, numbers), pick_spec(wide, numbers))


def judge_routing_triton(module):
    logits = (2 * randn(5, 12))[:, :9]
    logits[2, 3:7], logits[3], logits[4, 1] = 5.0, torch.nan, torch.nan
    for renormalize in (False, True):
        weights, experts = guarded(module.route, logits, 3, renormalize)
        expected, best = route_spec(logits, 3, renormalize)
        torch.testing.assert_close(weights, expected, equal_nan=True)
        assert experts[:2].tolist() == best[:2].tolist()
        assert experts[2].tolist() == [3, 4, 5]
        assert set(experts[3:].flatten().tolist()) <= set(range(9))


def judge_fused_moe_triton(module):
    tiles = MoeTiles(16, 32, 16, 4, 1)
    x, gate_up, down = randn(20, 50)[:, :40], randn(9, 72, 40, seed=1) / 6, randn(9, 40, 36, seed=2) / 6
    for experts in ([0] * 20, [8, *[1] * 17, 4, 8], [*range(9), *range(9), 3, 3]):
        order, starts = sort_with_room(experts, 9)
        expected = fused_moe_spec(x, gate_up, down, order, starts)
        assert_close(guarded(module.fused_moe, x, gate_up, down, order, starts, tiles), expected, 16)
    far_gate_up, far_down = (far_apart(1, *w.shape[1:])[0].copy_(w[:3]) for w in (gate_up, down))
    order, starts = sort_with_room([2, 1, 2], 3)
    expected = fused_moe_spec(x[:3].half().float(), far_gate_up.float(), far_down.float(), order, starts)
    assert_close(module.fused_moe(x[:3].half(), far_gate_up, far_down, order, starts, tiles), expected, 16)


def sort_with_room(experts, num_experts):
    """Whoever reads a source too many finds token 0."""
    order, starts = sort_by_expert(torch.tensor(experts), num_experts)
    return torch.nn.functional.pad(order, (0, 64))[: len(order)], starts


def judge_sample_triton(module):
    spread = torch.stack([draw_logits("spread", 40, seed) for seed in range(6)])
    spread[5, 20] = torch.nan
    edits = {0: (0, 0.0), 9: (-1, 0.0), 17: (1, 0.5), 21: (3, 0.0), 30: (0, -2.0)}
    often = torch.tensor([2.0, 1.5, *[0.0] * 38])
    for logits, asks in [
        (spread, [Ask(0.0, edits={i: (0, 9.0 + 3 * i)} if i % 2 else {}) for i in range(6)]),
        (spread, [Ask(0.0, allowed=frozenset({i, 2 * i + 1, 39 - i})) for i in range(6)]),
        (torch.stack([often, 0 * often]), [Ask(0.0, frequency=0.4, edits={0: (3, 0.0)}), Ask(0.0)]),
        (far_apart(1, 40, dtype=torch.float32)[0].copy_(spread[:3]), [Ask(0.0)] * 3),
        (spread, [Ask(2.0, seed=i) for i in range(6)]),
        (0.1 * spread[:5], [Ask(0.5, 0.0, 0, 1.0, i, 0, 3.0, 1.0, 2.0, edits) for i in range(5)]),
    ]:
        assert_drawn(logits, asks, module.sample)


def judge_draw_triton(module):
    steps, spread = (torch.stack([draw_logits(kind, 40, seed) for seed in range(6)]) for kind in ("steps", "spread"))
    flat_cuts = [Ask(**cut, seed=s) for cut in ({"top_k": 2}, {"min_p": 1.0}, {"top_k": -1}) for s in (0, 4)]
    with patch.multiple(sample_triton, draw=module.draw, uniform=module.uniform):
        for logits, asks in [
            (spread[:3], [Ask(5.0, top_k=1, seed=i) for i in range(3)]),
            (spread, [Ask(2.0, seed=2**40 + i, position=i % 3) for i in range(6)]),
            (torch.zeros(6, 40), flat_cuts),
            (steps[:3] / 4, [Ask(top_k=3, top_p=0.5), Ask(min_p=0.7, top_p=0.5, seed=3), Ask(top_p=0.2, seed=5)]),
        ]:
            assert_drawn(logits, asks, sample_triton.sample)


def assert_drawn(logits, asks, launcher):
    tokens = run(logits, asks, block=16, launcher=launcher)
    for row, ask, token in zip(logits, asks, tokens, strict=True):
        assert token in answers(row, ask), ask


def judge(name, module):
    globals()[f"judge_{name}"](module)


@pytest.mark.parametrize("name", FILES)
def test_the_kernels_as_they_are_pass_every_judge(name, tmp_path):
    judge(name, load(read(name), tmp_path))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # an edit must be caught by its numbers, not by numpy's warnings
@pytest.mark.parametrize(("name", "mutant"), MUTANTS, ids=[f"{name}: {mutant['fault']}" for name, mutant in MUTANTS])
def test_is_caught(name, mutant, tmp_path):
    module = load(read(name, mutant["old"], mutant["new"], mutant.get("also", ())), tmp_path)
    with pytest.raises(AssertionError):
        judge(name, module)
