"""What holds for every test: the environment that engine processes get, as far as a running process can still set it."""

import os

# Read when torch is imported. Spinning threads of several test processes would take each other's cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
