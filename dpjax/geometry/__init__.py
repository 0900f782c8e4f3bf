"""Vertex sets (simplex, l1 ball, polytopes), draws from a softmax over them, mirror maps."""

from dpjax.geometry._l1_ball import L1Ball as L1Ball
from dpjax.geometry._mirror import MirrorMap as MirrorMap
from dpjax.geometry._mirror import entropic as entropic
from dpjax.geometry._mirror import euclidean_ball as euclidean_ball
from dpjax.geometry._mirror import euclidean_box as euclidean_box
from dpjax.geometry._mirror import p_norm as p_norm
from dpjax.geometry._mirror import product as product
from dpjax.geometry._polytope import Polytope as Polytope
from dpjax.geometry._polytope import Simplex as Simplex
from dpjax.geometry._vertices import Domain as Domain
from dpjax.geometry._vertices import log_normalize as log_normalize
from dpjax.geometry._vertices import maurey as maurey
from dpjax.geometry._vertices import sample_vertices as sample_vertices
