import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages: this makes scheduler_rig importable

from scheduler_rig import Rig  # noqa: E402


@pytest.fixture
def rig():
    """Builds a scheduler with its blocks and a memory that checks them; see scheduler_rig.Rig for the options."""
    return Rig
