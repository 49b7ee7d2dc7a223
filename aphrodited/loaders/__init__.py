"""From files to models: see load_model."""

from aphrodited.loaders.load import load_model

__all__ = ["load_model"]
