"""Tensors whose shape is no row of numbers; every user of a layout gets a new one."""

import warnings

import torch

LAYOUTS = ("jagged", "strided")


def nested(layout):
    """Two tensors as one, of shapes (2, 3) and (4, 3)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are a prototype
        return torch.nested.nested_tensor(
            [torch.ones(2, 3), torch.zeros(4, 3)], layout=getattr(torch, layout)
        )


def parts_of(tensor):
    """The numbers in each of its parts."""
    return [part.tolist() for part in tensor.unbind()]
