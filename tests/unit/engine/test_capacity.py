import pytest

from aphrodited.config.schema import EngineConfig, ModelConfig
from aphrodited.engine.capacity import AUTO_MEMORY_LIMIT, available_memory, plan_capacity
from aphrodited.errors import ConfigError

GIB = 1024**3


def plan(max_model_len="auto", *, trained=2048, block_bytes=1024, free_memory=8 * GIB, window=None, **engine):
    config = ModelConfig(name="m", path="p", max_model_len=max_model_len, engine=EngineConfig(**engine))
    return plan_capacity(
        config, max_position_embeddings=trained, block_bytes=block_bytes, free_memory=free_memory, window=window
    )


def test_the_length_is_what_the_model_was_trained_for_at_most_8192():
    assert plan(trained=2048).max_model_len == 2048
    assert plan(trained=131072).max_model_len == 8192


def test_an_explicit_length_is_taken():
    assert plan(100, trained=131072).max_model_len == 100
    assert plan(16384, trained=131072).max_model_len == 16384


@pytest.mark.parametrize("length", [-1, 0, 1, 2049])
def test_a_length_the_model_was_not_trained_for_is_refused(length):
    with pytest.raises(ConfigError, match="expected 2 to 2048"):
        plan(length)


def test_auto_memory_is_what_all_sequences_need():
    assert plan(max_num_seqs=4, block_size=16).num_blocks == 4 * 2048 // 16


def test_auto_memory_is_at_most_a_quarter_of_what_is_free():
    assert plan(block_bytes=1024**2, free_memory=4 * GIB).num_blocks == 1024


def test_auto_memory_has_a_limit():
    assert plan(block_bytes=1024**2, free_memory=64 * GIB).num_blocks == AUTO_MEMORY_LIMIT // 1024**2


def test_explicit_memory_is_taken():
    assert plan(kv_cache_memory=GIB, block_bytes=1024**2).num_blocks == 1024


def test_a_length_left_to_us_shrinks_to_what_the_memory_holds():
    it = plan(kv_cache_memory=1024**2, block_bytes=65536, block_size=16)
    assert (it.max_model_len, it.num_blocks) == (256, 16)


def test_an_explicit_length_that_does_not_fit_says_what_would():
    with pytest.raises(ConfigError, match=r"holds 256 tokens.*kv_cache_memory to at least 8388608"):
        plan(2048, kv_cache_memory=1024**2, block_bytes=65536, block_size=16)


def test_no_room_for_a_single_block_is_an_error():
    with pytest.raises(ConfigError, match="holds 0 tokens"):
        plan(kv_cache_memory=1000, block_bytes=65536)


def test_a_block_size_is_a_power_of_two():
    with pytest.raises(ConfigError, match=r"engine\.block_size is 24"):
        plan(block_size=24)


def test_available_memory_is_a_plausible_number_of_bytes():
    assert 1024**2 < available_memory() < 2**50


def test_behind_a_window_a_sequence_may_be_longer_than_the_cache():
    window = {"window": 64, "block_size": 16, "max_num_batched_tokens": 32, "max_num_seqs": 10}
    assert plan(2048, kv_cache_memory=5 * 1024, **window).num_blocks == 5
    with pytest.raises(ConfigError, match="at least 5120"):
        plan(2048, kv_cache_memory=4 * 1024, **window)
    assert plan(kv_cache_memory=4 * 1024, **window).max_model_len == 64
    assert plan(**window).num_blocks == 10 * 7  # 63 tokens before a chunk of 32, which begin and end within blocks
    assert plan(48, **window).num_blocks == 10 * 3
