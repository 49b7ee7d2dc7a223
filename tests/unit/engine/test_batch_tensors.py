import torch

from aphrodited.engine.batch_tensors import BatchTensors, step_input

CPU = torch.device("cpu")


def scheduled(rig):
    """Two decoding sequences, the last piece of one prompt, and a first piece of another."""
    it = rig(max_num_batched_tokens=14)
    it.add(range(5), max_tokens=9, ignore_eos=True)
    it.add(range(50, 53), max_tokens=9, ignore_eos=True)
    it.add(range(100, 111), max_tokens=9, ignore_eos=True)
    it.add(range(200, 220), max_tokens=9, ignore_eos=True)
    it.step()
    return it.scheduler.schedule()


def test_every_row_is_what_a_loop_over_tokens_says(rig):
    batch = scheduled(rig)
    assert [(e.start, e.num_tokens) for e in batch.entries] == [(5, 1), (3, 1), (6, 5), (0, 7)]
    tensors = BatchTensors.build(batch, 4, CPU)
    ids, positions, slots = [], [], []
    for entry in batch.entries:
        for position in range(entry.start, entry.start + entry.num_tokens):
            ids.append(entry.sequence.token_ids[position])
            positions.append(position)
            slots.append(entry.sequence.block_table[position // 4] * 4 + position % 4)
    metadata = tensors.metadata
    assert tensors.input_ids.tolist() == ids
    assert metadata.positions.tolist() == positions
    assert metadata.slot_mapping.tolist() == slots
    assert metadata.cu_seqlens.tolist() == [0, 1, 2, 7, 14]
    assert metadata.context_lens.tolist() == [6, 4, 11, 7]
    assert metadata.max_query_len == 7
    for row, entry in zip(metadata.block_tables.tolist(), batch.entries, strict=True):
        table = list(entry.sequence.block_table)
        assert row[: len(table)] == table
    assert tensors.logits_rows.tolist() == [0, 1, 6]


def test_types_are_what_attention_expects(rig):
    tensors = BatchTensors.build(scheduled(rig), 4, CPU)
    metadata = tensors.metadata
    assert {tensors.input_ids.dtype, metadata.positions.dtype, metadata.slot_mapping.dtype} == {torch.int64}
    assert {metadata.block_tables.dtype, metadata.cu_seqlens.dtype, metadata.context_lens.dtype} == {torch.int32}


def test_a_batch_of_decodes_needs_no_selection_of_rows(rig):
    it = rig()
    it.add(range(5), max_tokens=9, ignore_eos=True)
    it.add(range(5), max_tokens=9, ignore_eos=True)
    it.step()
    assert BatchTensors.build(it.scheduler.schedule(), 4, CPU).logits_rows is None


def test_a_batch_that_samples_nothing_selects_nothing(rig):
    it = rig(max_num_batched_tokens=4)
    it.add(range(9), max_tokens=1)
    assert BatchTensors.build(it.scheduler.schedule(), 4, CPU).logits_rows.tolist() == []


def test_a_step_of_decodes_has_the_same_input_either_way(rig):
    it = rig()
    for length in (5, 3, 9):
        it.add(range(length), max_tokens=9, ignore_eos=True)
    it.step()
    batch = it.scheduler.schedule()
    tensors, (token_ids, places) = BatchTensors.build(batch, 4, CPU), step_input(batch, 4)
    assert token_ids.tolist() == tensors.input_ids.tolist()
    assert places.positions.tolist() == tensors.metadata.positions.tolist() == [5, 3, 9]
    assert places.slots.tolist() == tensors.metadata.slot_mapping.tolist()
    assert places.block_tables.tolist() == tensors.metadata.block_tables.tolist()
    assert all(array.flags.c_contiguous for array in (token_ids, *places))
