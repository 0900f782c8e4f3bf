"""Diagnostics that read the data raw, of no privacy at all: how stationary a point is."""

from dpjax.audit._goldstein import GoldsteinNorm as GoldsteinNorm
from dpjax.audit._goldstein import goldstein_norm as goldstein_norm
