"""Benchmarks: ratios measured in one run, written to ``benchmarks/results``, shown in the docs.

``python -m benchmarks`` runs them all, ``python -m benchmarks diffusion layer`` some of them.
"""
