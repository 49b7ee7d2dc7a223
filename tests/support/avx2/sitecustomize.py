"""Makes a CPU with AVX-512 one that has AVX2 only, for whatever an interpreter compiles: see scripts/check-avx2.

Python imports a module of this name by itself where the folder is in PYTHONPATH.
"""

from llvmlite import binding

_NEWER = ("avx512", "avx10", "avxvnni", "amx")
_host_features = binding.get_host_cpu_features


def _features_without_newer_ones() -> dict[str, bool]:
    return {name: has and not name.startswith(_NEWER) for name, has in _host_features().items()}


binding.get_host_cpu_features = _features_without_newer_ones
