import pytest
import torch

from aphrodited.layers.embedding import DenseEmbedding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_are_widened_without_a_change(dtype: torch.dtype) -> None:
    table = torch.randn(10, 4).to(dtype)
    rows = DenseEmbedding(table)(torch.tensor([3, 3, 9]))
    assert rows.dtype == torch.float32
    assert torch.equal(rows, table[[3, 3, 9]].float())
