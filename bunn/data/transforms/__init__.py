"""Encodings and spectra, as PyG transforms; what takes long is kept on disk between runs."""

from bunn.data.transforms.cache import (
    CacheWarning,
    DamagedCacheWarning,
    DiskCache,
    UnwritableCacheWarning,
    cache_root,
)
from bunn.data.transforms.cached_spectrum import CachedSpectrum, known_laplacian
from bunn.data.transforms.degree_encoding import DegreeEncoding
from bunn.data.transforms.laplacian_encoding import LaplacianEncoding
from bunn.data.transforms.quantile_encoding import QuantileEncoding
from bunn.data.transforms.random_walk_encoding import RandomWalkEncoding
from bunn.data.transforms.sign_flip import RandomSignFlip, apply_signs, flip_signs, random_signs

__all__ = [
    "CacheWarning",
    "CachedSpectrum",
    "DamagedCacheWarning",
    "DegreeEncoding",
    "DiskCache",
    "LaplacianEncoding",
    "QuantileEncoding",
    "RandomSignFlip",
    "RandomWalkEncoding",
    "UnwritableCacheWarning",
    "apply_signs",
    "cache_root",
    "flip_signs",
    "known_laplacian",
    "random_signs",
]
