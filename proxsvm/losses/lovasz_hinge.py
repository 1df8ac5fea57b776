"""The Lovász hinge: a convex loss for binary masks that bounds the Jaccard loss, not the number of wrong pixels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm.losses._targets import BinaryLoss
from proxsvm.losses.base import Atom


class LovaszHinge(BinaryLoss):
    """ℓ(u; y) = Σ_i g_i max(0, e_i), the Lovász extension of 1 − IoU at the margins' errors e_i = 1 − (2y_i − 1) u_i.

        g_π(i) = Δ(π(1) … π(i)) − Δ(π(1) … π(i − 1)),       Δ(M) = |M| / |{y = 1} ∪ M|

    with π sorting the errors in decreasing order: one sort. Δ(M), which is 1 − IoU where the pixels M are wrong, is
    submodular (Berman, Triki, Blaschko: "The Lovász-Softmax loss", CVPR 2018). Atoms: s_i = −(2y_i − 1) g_i a_i,
    c = Σ_i g_i a_i for every order of the pixels and every a in {0, 1}^P; the oracle's a_i is 1 where e_i > 0.

    Scores: one logit per pixel, ``[n, ...]``. Target: 0 and 1 of the same shape, integer or bool; pixels of
    ``ignore_index`` are left out. NaN or infinite scores make the loss NaN or infinite: the optimizer skips the step.

    Args:
        per_image: True: every image is a sample, and the loss the mean over images. False: the pixels of the whole
            batch form one sample, which is less noisy where the object is missing from many images.
        options: ``ignore_index``, the label of pixels to leave out (an image without others has the loss 0), and
            ``reduction``, as in torch.

    >>> logits = torch.tensor([[[3.0, -2.0], [0.5, -3.0]]])          # [n, H, W]
    >>> mask = torch.tensor([[[1, 0], [0, 0]]])
    >>> LovaszHinge()(logits, mask)          # one error, 1 + 0.5; it would add one pixel to a union of two: Δ = 1/2
    tensor(0.7500)
    >>> LovaszHinge()(logits, torch.tensor([[[1, 0], [-100, 0]]]))
    tensor(0.)
    """

    options = ("per_image", *BinaryLoss.options)

    def __init__(self, *, per_image: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.per_image = per_image

    def prepare(self, scores: Any, target: Any) -> tuple[Tensor, Tensor]:
        """As for every binary loss; scores and labels become ``[n, P]``, or ``[1, n · P]``."""
        scores, y = super().prepare(scores, target)
        n = len(scores) if self.per_image else 1
        return scores.reshape(n, -1), y.reshape(n, -1)

    def oracle(self, scores: Tensor, target: Tensor) -> Atom:
        """Sort the errors, and take the discrete derivative of Δ along that order where the error is positive."""
        valid, sign = target != self.ignore_index, (2 * target - 1).to(scores)
        error = torch.where(valid, 1 - sign * scores, -torch.inf)
        error, order = error.sort(1, descending=True)
        y, valid = target.gather(1, order), valid.gather(1, order)
        positive = (valid & (y == 1)).long()
        total = positive.sum(1, keepdim=True)
        kept = (total - positive.cumsum(1)).to(scores)  # |{y = 1} \ M|, for the first pixels M of the order
        union = (total + (valid & (y == 0)).cumsum(1)).clamp(min=1).to(scores)  # |{y = 1} ∪ M|
        # Δ(M + a positive) − Δ(M) = 1/union; for a negative kept (1/(union − 1) − 1/union), or Δ = 1 where M was empty
        # and so was {y = 1}: differences of Δ itself would cancel.
        negative = torch.where(union > 1, kept / (union * (union - 1)).clamp(min=1), (total == 0).to(scores))
        g = torch.where(positive == 1, 1 / union, negative) * (error > 0)
        s = torch.zeros_like(scores).scatter(1, order, -sign.gather(1, order) * g)
        return Atom(s, g.sum(1))
