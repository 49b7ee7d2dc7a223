import pytest
import torch

from aphrodited.engine.kv_cache_pool import KVCachePool, kv_block_bytes
from aphrodited.errors import ConfigError
from aphrodited.loaders.dummy import KNOWN_SHAPES

ARCHITECTURE = KNOWN_SHAPES["EleutherAI/pythia-70m-deduped"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_layer_has_keys_and_values_of_its_own(dtype):
    pool = KVCachePool(ARCHITECTURE, num_blocks=3, block_size=16, dtype=dtype)
    assert [keys.shape for keys, _ in pool.layers] == [(3, 8, 16, 64)] * ARCHITECTURE.num_layers
    tensors = [tensor for layer in pool.layers for tensor in layer]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert [tensor.unique().tolist() for tensor in tensors] == [[number] for number in range(len(tensors))]
    assert sum(tensor.nbytes for tensor in tensors) == 3 * kv_block_bytes(ARCHITECTURE, 16, dtype)


@pytest.mark.parametrize("num_blocks", [2**40, 2**70])
def test_more_than_the_system_gives_is_an_error_of_the_configuration(num_blocks):
    with pytest.raises(ConfigError, match=r"lower engine\.kv_cache_memory"):
        KVCachePool(ARCHITECTURE, num_blocks=num_blocks, block_size=16, dtype=torch.float32)
