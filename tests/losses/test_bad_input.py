"""Scores, targets and options that no loss can take: an error that names them, before anything is computed."""

import pytest
import torch

from proxsvm import losses
from proxsvm.losses import ChainHinge, CrossEntropy, GridHinge, MultiClassHinge
from proxsvm.structures import Chain

X, INDEX = torch.randn(3, 4), torch.tensor([0, 1, 2])
COST = (1 - torch.eye(4)).index_put((torch.tensor(0), torch.tensor(1)), torch.tensor(torch.nan))
OPTIONS = {
    "class weights of a matrix": (lambda: MultiClassHinge(weight=torch.ones(2, 2)), r"weight has shape \(2, 2\)"),
    "negative class weights": (lambda: CrossEntropy(weight=torch.tensor([1.0, -1.0])), "finite numbers"),
    "weights of other classes": (lambda: CrossEntropy(weight=torch.ones(3))(X, INDEX), "weight is for 3 classes"),
    "reduction": (lambda: MultiClassHinge(reduction="avg"), "reduction is 'avg'"),
    "k": (lambda: losses.TopKHinge(0), "k is 0"),
    "half a k": (lambda: losses.TopKHinge(1.5), "k is 1.5"),
    "too few classes for k": (lambda: losses.TopKHinge(5)(X, INDEX), "expected at least k"),
    "epsilon": (lambda: losses.L1Regression(epsilon=-1.0), "epsilon is -1"),
    "infinite epsilon": (lambda: losses.L1Regression(epsilon=torch.inf), "epsilon is inf"),
    "tau": (lambda: losses.QuantileRegression(1.5), "tau is 1.5"),
    "a cost of other classes": (lambda: MultiClassHinge(torch.zeros(2, 2))(X, INDEX), "cost is for 2 classes"),
    "a sample weight too few": (lambda: MultiClassHinge()(X, INDEX, torch.ones(2)), "sample_weight"),
    "a negative sample weight": (lambda: MultiClassHinge()(X, INDEX, torch.tensor([1.0, -1, 1])), "sample_weight"),
    "an infinite sample weight": (lambda: MultiClassHinge()(X, INDEX, torch.full((3,), torch.inf)), "sample_weight"),
    "no sample weight": (lambda: MultiClassHinge()(X, INDEX, torch.zeros(3)), "sample_weight"),
    "a cost that is nan": (lambda: MultiClassHinge(COST), "finite and non-negative"),
    "an infinite cost": (lambda: MultiClassHinge(COST.nan_to_num(torch.inf)), "finite and non-negative"),
    "a negative cost": (lambda: ChainHinge(-torch.ones(3, 3)), "finite and non-negative"),
    "a cost of the truth": (lambda: ChainHinge(torch.eye(3)), "zero diagonal"),
    "a cost that is not square": (lambda: ChainHinge(torch.zeros(2, 3)), r"cost has shape \(2, 3\)"),
    "label smoothing": (lambda: CrossEntropy(label_smoothing=1.5), "label_smoothing is 1.5"),
    "delta": (lambda: losses.Huber(0.0), "delta is 0.0"),
    "negative pos_weight": (lambda: losses.BinaryCrossEntropy(pos_weight=torch.tensor(-1.0)), "pos_weight is"),
    "weights of another shape": (
        lambda: losses.BinaryCrossEntropy(weight=torch.ones(7))(X, X.sigmoid()),
        "broadcasts to",
    ),
    "negative weights of a grid": (lambda: GridHinge(negative="ignore"), "expected 'refuse' or 'project'"),
    "formula of another shape": (
        lambda: losses.SmoothLoss(lambda u, y: u.square())(X, None),
        r"\(3, 4\); expected one per",
    ),
    "formula without a value": (lambda: losses.SmoothLoss(lambda u, y: None)(X, None), "NoneType; expected one per"),
    "the class of a structure": (lambda: losses.CRF(Chain), "structure is .*Chain.*; expected a Structure"),
    "a cost for a structure": (lambda: losses.StructuredHinge(torch.ones(3, 3)), "expected a Structure"),
    "no formula": (lambda: losses.SmoothLoss()(X, None), "must define formula"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_bad_options_are_named(case):
    make, message = OPTIONS[case]
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=message):
        make()


U, Y = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.long)
BITS, LABELS, RANKS = losses.LovaszHinge(), losses.MultiLabelHinge(), losses.AveragePrecisionHinge()
PAIRS, STAR = torch.zeros(3, 2, 2), losses.MultiLabelHinge([-1, 0, 0])
HINGE, L1 = MultiClassHinge(), losses.L1Regression()
CLASSES = CrossEntropy(), HINGE, losses.TopKHinge(2), losses.WestonWatkinsHinge()
VECTORS = [
    *((loss, X.to(torch.float8_e4m3fn), INDEX, "float8_e4m3fn") for loss in CLASSES),
    *((loss, X.to_sparse(), INDEX, "sparse_coo") for loss in CLASSES),
    *((loss, X.to(kind), INDEX, "complex64|int64") for loss in CLASSES for kind in (torch.long, torch.cfloat)),
    *((loss, X, INDEX.where(INDEX < 2, bad), r"outside \[0, 4\)") for loss in CLASSES for bad in (-1, 4, 10**9)),
    *((loss, X, X.softmax(1), "argmax.*CrossEntropy.*mixup") for loss in CLASSES[1:]),
    *((loss, X, INDEX.tolist(), "a list.*torch.as_tensor") for loss in (*CLASSES, losses.BinaryCrossEntropy())),
    *((loss, U, Y.numpy(), "a ndarray.*torch.as_tensor") for loss in (*CLASSES, BITS, LABELS, RANKS)),
    (losses.WestonWatkinsHinge(), X, INDEX > 0, "expected class indices"),
    (HINGE, X, INDEX[:2], r"expected \(3,\)"),
    (HINGE, X, torch.zeros(3, 4, dtype=torch.long), r"expected \(3,\)"),
    (HINGE, X[:, 0], INDEX, r"expected one tensor \[n, K\]"),
    (HINGE, X[None], INDEX, r"expected \(1, 4\)"),
    (HINGE, X[:0], INDEX[:0], "at least one sample"),
    (L1, X[:0], X[:0], "at least one sample"),
    (L1, torch.zeros(()), torch.zeros(()), "at least one sample"),
    (L1, [1.0], X, "got scores of a list"),
    (L1, (X, None), X, "a NoneType in the tuple"),
    (L1, X, X[:, :1], "expected the same shape"),
    (losses.QuantileRegression([0.1, 0.9]), X, torch.zeros(3), r"expected \[n, ..., 2\]"),
    (losses.BinaryCrossEntropy(), X, X + 9, r"outside \[0, 1\]"),
    (CrossEntropy(), X, -X.abs(), "below 0"),
    (CrossEntropy(), X, X.softmax(1)[:2], "class probabilities of shape"),
    (losses.SquaredError(), X, X[:2], "expected the same shape"),
    (losses.SquaredError(), X, [1.0], r"torch\.as_tensor"),
    (L1, X, 3.0, r"torch\.as_tensor"),
    *((loss, U, Y + 2, "not 0, 1") for loss in (BITS, RANKS)),
    *((loss, U, Y[:, :2], "target of shape") for loss in (BITS, LABELS, RANKS)),
    *((loss, U, Y.double(), "neither integer nor bool") for loss in (BITS, LABELS, RANKS)),
    *((loss, U[:0], Y[:0], "at least one sample") for loss in (BITS, RANKS)),
    (BITS, U[:, None], Y, "squeeze"),
    (RANKS, U[0], Y[0], r"expected \[n, m\]"),
    (LABELS, U, Y + 2, "not 0 or 1"),
    (LABELS, (U, PAIRS), Y, "no tuple without a tree"),
    (STAR, U, Y, "needs the scores"),
    (losses.MultiLabelHinge([-1, 0]), (U, PAIRS), Y, "tree of"),
    (STAR, (U, PAIRS[:2]), Y, "pairwise scores of shape"),
    (losses.MultiLabelHinge([-1, 2, 1]), (U, PAIRS), Y, "cycle"),
]


def of(kinds, scores, *targets_and_messages):
    return [(kind(), scores, target, message) for kind in kinds for target, message in targets_and_messages]


U, P = torch.zeros(2, 3, 4), torch.zeros(4, 4)
CHAINS, TREES = (ChainHinge, losses.ChainCRF), (losses.TreeHinge, losses.TreeCRF)
SEQUENCES = [
    *of(
        CHAINS,
        (U, P),
        (Y + 4, "label outside"),
        (Y - 1, "label outside"),
        ((Y, torch.tensor([0, 3])), "length outside"),
        ((Y, torch.tensor([4, 3])), "length outside"),
        ((Y, torch.tensor([3])), r"expected \(2,\) integers"),
        ((Y, torch.ones(2, 4, dtype=torch.bool)), "got a mask of shape"),
        ((Y, torch.zeros(2, 3, dtype=torch.bool)), "empty sample"),
        (Y[:, :2], "got labels of shape"),
        (Y.double(), "neither integer nor bool"),
    ),
    *of(CHAINS, (U, P[:3, :3]), (Y, "pairwise scores of shape")),
    *of(CHAINS, U, (Y, "expected a tuple")),
    *of(CHAINS, (U[0], P), (Y, "unary scores of")),
    *of(CHAINS, (U.to_sparse(), P), (Y, "unary scores of .*sparse_coo")),
    *of(CHAINS, (U.to(torch.float8_e4m3fn), P), (Y, "unary scores of .*float8")),
    *of(CHAINS, (U, P, torch.zeros(4).numpy()), (Y, "got a tuple of Tensor, Tensor, ndarray")),
    *of(CHAINS, (U, P, torch.zeros(3), None), (Y, "start scores")),
    *of(CHAINS, (U, P, None, None, None), (Y, "got 5 scores")),
    *of(
        TREES,
        (U, P),
        ((Y, torch.tensor([[-1, 2, 1]] * 2)), "cycle"),
        ((Y, torch.tensor([[-1, 1, 0]] * 2)), "cycle"),
        ((Y, torch.tensor([[1, 2, 1]] * 2), torch.tensor([[True, False, False]] * 2)), "cycle"),  # behind the mask
        ((Y, torch.tensor([[-1, 3, 0]] * 2)), "not a node"),
        ((Y, torch.tensor([[-1, 2, 0]] * 2), torch.tensor([2, 2])), "not a node"),  # it is padding
        ((Y, torch.tensor([-1, 0, 0])), "parents of shape"),
        (Y, r"not \(labels, parents\)"),
    ),
]
R, D, IMAGE = torch.zeros(2, 3, 3), torch.zeros(2, 2, 4), torch.zeros(2, 3, 4, dtype=torch.long)
GRIDS = [
    *of([GridHinge], U, (IMAGE, "expected a tuple")),
    *of([GridHinge], (U, D, R), (IMAGE, "right and down of shapes")),
    *of([GridHinge], (U.long(), R, D), (IMAGE, "expected floating-point")),
    *of([GridHinge], (U[:, :1], R[:, :1], D[:, :0]), (IMAGE[:, :1], "ChainHinge")),
    *of([GridHinge], (U, R - 2, D), (IMAGE, "not submodular")),
    *of(
        [GridHinge],
        (U, R, D),
        (IMAGE + 2, "not 0 or 1"),
        (IMAGE[:, :2], "labels of shape"),
        (IMAGE.double(), "neither integer nor bool"),
        ((IMAGE, torch.ones(2, 3, 3, dtype=torch.bool)), "mask of"),
        ((IMAGE, torch.zeros_like(IMAGE, dtype=torch.bool)), "without any pixel"),
    ),
]


def name(case):
    return f"{type(case[0]).__name__}-{case[3]}"


@pytest.mark.parametrize("case", [*VECTORS, *SEQUENCES, *GRIDS], ids=name)
def test_bad_input_is_refused(case):
    loss, scores, target, message = case
    with pytest.raises((ValueError, TypeError), match=message):
        loss(scores, target)
