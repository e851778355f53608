"""What a rank is asked to do in tests. (In a module of its own, so that the ranks need not import the tests.)"""

import time
from pathlib import Path

import torch

from minipaged.batch import Batch
from minipaged.config import EngineConfig
from minipaged.input_batch import to_device
from minipaged.kv_cache import KVCache
from minipaged.loading import load_model
from minipaged.memory import count_block_bytes
from minipaged.models.config import parse_model_config, read_model_config
from minipaged.models.decoder import Decoder
from minipaged.models.weights import load_weights
from minipaged.ops import choose_ops
from minipaged.parallel.layers import Build, RowLinear
from minipaged.parallel.place import Place
from minipaged.parallel.portion import Nth, split_model
from tests.models.configs import LLAMA

CPU, BLOCK_SIZE = torch.device("cpu"), 4
SMALL = parse_model_config(LLAMA)


def load(place, folder, dtype=torch.float32):
    model = Decoder(read_model_config(Path(folder)), choose_ops("torch", dtype, CPU), dtype, CPU, place)
    load_weights(model, Path(folder))
    return model


def batch_of(token_ids, start, end):
    """Positions [start, end) of one sequence that owns the blocks from number 1 on; every row is sampled."""
    slots = [BLOCK_SIZE + position for position in range(start, end)]
    table = list(range(1, 1 + -(-end // BLOCK_SIZE)))
    rows = list(range(end - start))
    return Batch(token_ids[start:end], list(range(start, end)), slots, [0, len(rows)], [end], [table], rows, [], [], [])


@torch.inference_mode()
def run(place, folder, token_ids, chunk_lens, dtype=torch.float32):
    """A sequence in these chunks, in memory full of NaN, without waiting for anybody in between: all its logits [T, V]
    as lists, and what this rank has sent: messages and bytes, by operation."""
    model = load(place, folder, dtype)
    model.pack()
    num_blocks = 1 + -(-len(token_ids) // BLOCK_SIZE)
    cache = KVCache(num_blocks, BLOCK_SIZE, model.portion, model.config.head_dim, dtype, CPU)
    cache.data.fill_(torch.nan)
    logits, start = [], 0
    for length in chunk_lens:
        logits.append(model(to_device(batch_of(token_ids, start, start + length), CPU), cache))
        start += length
    traffic = place.traffic
    return torch.cat(logits).tolist(), dict(traffic.num_messages), dict(traffic.num_bytes)


def run_alone(folder, token_ids, chunk_lens, dtype=torch.float32):
    return torch.tensor(run(Place.alone(), folder, token_ids, chunk_lens, dtype)[0])


def converse(place):
    """Every operation of the tensor group once, on numbers that tell who sent them."""
    group = place.tensor
    x = torch.arange(3.0).repeat(2, 1) + 10 * group.rank  # [2, 3]
    messages = place.traffic
    return {
        "all_reduce": group.all_reduce(x.clone()).tolist(),
        "all_gather": group.all_gather(x).tolist(),
        "all_gather_0": group.all_gather(x, dim=0).tolist(),
        "gather": group.gather(x).tolist(),
        "strided": group.gather(x.T).tolist(),
        "num_bytes": dict(messages.num_bytes),
    }


def add_up(place, values, dtype):
    """An all-reduce of numbers that differ from rank to rank: the bits of what comes out."""
    x = torch.tensor(values[place.tensor.rank], dtype=dtype)
    return place.tensor.all_reduce(x).float().tolist()


def relay(place, num_messages):
    """Messages down the pipeline, faster than anybody can take them; what arrives at the end."""
    arrived = []
    for i in range(num_messages):
        x = torch.full((1000,), float(i)) if place.is_first else place.pipeline.receive(torch.empty(1000))
        if place.is_last:
            time.sleep(0.01)
            arrived.append(x.unique().tolist())
        else:
            place.pipeline.send_on(x + 1)
    return arrived


def wait_for_nothing(place, over):
    """Rank 1 waits for a message that never comes: what it says, and after how many seconds. Rank 0 does not leave
    before that is over."""
    over = Path(over)
    while place.is_first and not over.exists():
        time.sleep(0.02)
    if place.is_first:
        return None
    start = time.monotonic()
    try:
        place.pipeline.receive(torch.empty(3))
    except RuntimeError as error:
        return time.monotonic() - start, str(error)
    finally:
        over.touch()
    raise AssertionError("something came")


def once_with_bias(place):
    """A bias of 1 behind a product that is 0 in every rank."""
    ops = choose_ops("torch", torch.float32, CPU)
    build = Build(ops, torch.float32, CPU, split_model(SMALL, Nth(), Nth()), place.tensor)
    layer = RowLinear(3, range(4), bias=True, build=build)
    for name, (memory, _) in layer.checkpoint("o_proj").items():
        memory.fill_(name.endswith("bias"))
    layer.pack()
    return layer(torch.ones(1, 4))[0].tolist()


@torch.inference_mode()
def say_with_loud_padding(place, folder, token_ids):
    """All logits [T, V], if what padding has to say is louder than any word."""
    model = load(place, folder)
    num_words = len(model.checkpoint()["lm_head.weight"].memory)
    model.exit.lm_head.weight[num_words:] = 1e6
    model.entrance.weight[num_words:] = torch.nan
    model.pack()
    cache = KVCache(1 + len(token_ids), BLOCK_SIZE, model.portion, model.config.head_dim, torch.float32, CPU)
    return model(to_device(batch_of(token_ids, 0, len(token_ids)), CPU), cache).tolist()


def load_part(place, folder, load_format):
    """What loading makes of a place; None: of the whole model."""
    runner = load_model(EngineConfig(model=folder, max_model_len=64, load_format=load_format), place)
    return {
        "layers": len(runner.model.layers),
        "block_bytes": count_block_bytes(runner, runner.config),
        "weight_bytes": runner.model.num_weight_bytes,
        "forward_s": runner.forward_s,
        "answers": place is not None and place.answers,
    }
