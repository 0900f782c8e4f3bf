"""Estimates from draws of vertices that no default uses: multilevel, polar, Maurey's average."""

from dpjax.papers.estimators._maurey import MaureySampleState as MaureySampleState
from dpjax.papers.estimators._maurey import maurey_sample as maurey_sample
from dpjax.papers.estimators._multilevel import Multilevel as Multilevel
from dpjax.papers.estimators._multilevel import draw_levels as draw_levels
from dpjax.papers.estimators._multilevel import multilevel as multilevel
from dpjax.papers.estimators._multilevel import polar_estimate as polar_estimate
from dpjax.papers.estimators._multilevel import polar_interval as polar_interval
