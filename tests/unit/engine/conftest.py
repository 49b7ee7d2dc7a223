import pytest

from tests.support.scheduler_rig import Rig


@pytest.fixture
def rig():
    """Builds a scheduler with its blocks and a memory that checks them; see Rig for the options."""
    return Rig
