"""Multi-label hinges against enumeration and against the tree that they are."""

import pytest
import torch

from proxsvm.losses import MultiLabelHinge
from proxsvm.verification import check_loss


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("smooth", [False, True])
def test_independent_labels_are_a_tree_without_scores(smooth, normalize):
    u, target = torch.randn(4, 5), torch.randint(2, (4, 5))
    alone = MultiLabelHinge(smooth=smooth, normalize=normalize)
    tied = MultiLabelHinge([-1, 0, 0, 1, 1], smooth=smooth, normalize=normalize)
    check_loss(alone, u, target)
    check_loss(tied, (u, torch.randn(5, 2, 2)), target)
    torch.testing.assert_close(alone(u, target), tied((u, torch.zeros(5, 2, 2)), target))


def test_it_is_a_sum_of_binary_hinges():
    u, target = torch.randn(4, 5), torch.randint(2, (4, 5), dtype=torch.bool)
    expected = (1 - (2 * target - 1.0) * u).clamp(min=0).sum(1).mean()
    torch.testing.assert_close(MultiLabelHinge()(u, target), expected)
