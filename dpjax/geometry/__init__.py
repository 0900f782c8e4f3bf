"""Vertex sets (simplex, l1 ball, polytopes), draws from a softmax over them, mirror maps."""

from dpjax.core._moved import moved as _moved
from dpjax.geometry._l1_ball import L1Ball as L1Ball
from dpjax.geometry._polytope import Polytope as Polytope
from dpjax.geometry._polytope import Simplex as Simplex
from dpjax.geometry._vertices import Domain as Domain
from dpjax.geometry._vertices import log_normalize as log_normalize
from dpjax.geometry._vertices import maurey as maurey
from dpjax.geometry._vertices import sample_vertices as sample_vertices

_MIRROR_MAPS = ("MirrorMap", "entropic", "euclidean_ball", "euclidean_box", "p_norm", "product")
__getattr__ = _moved(__name__, {}, kept={"dpjax.papers.mirror": _MIRROR_MAPS})
