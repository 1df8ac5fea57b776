"""TRANSITION: removed when the solvers no longer import it."""
import torch
from torch import Tensor
Number = float | Tensor
def as_tensors(*numbers):
    like = next(x for x in numbers if isinstance(x, Tensor))
    return [x if isinstance(x, Tensor) else like.new_tensor(x) for x in numbers]
def to_float(x): return float(x)
def best_gamma(a, c):
    from proxsvm.problem import best_gamma as f
    a, c = (torch.as_tensor(x) for x in (a, c))
    return f(a, c)
