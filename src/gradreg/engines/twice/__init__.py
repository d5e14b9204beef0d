"""Layers that are fast when differentiated twice, and vectorised over members: put in the place of PyTorch's."""

from gradreg.engines.twice.mode import FastTwice, pytorchs_layers

__all__ = ["FastTwice", "pytorchs_layers"]
