"""The network around w_t as a linear map: from its graph, or from the features of a linear model."""

from proxsvm.linearization.base import LinearMap
from proxsvm.linearization.cheap_jvp import cheap_jvp
from proxsvm.linearization.features import FeatureLinearization
from proxsvm.linearization.graph import Linearization

__all__ = ["FeatureLinearization", "LinearMap", "Linearization", "cheap_jvp"]
