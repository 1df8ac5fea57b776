"""Compiled and fused loops: the only package that imports numba or takes the address of a tensor."""
