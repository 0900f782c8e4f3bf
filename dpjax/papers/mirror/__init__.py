"""Mirror maps, and descent by them, which no default uses."""

from dpjax.papers.mirror._descent import AnytimeState as AnytimeState
from dpjax.papers.mirror._descent import MirrorStepState as MirrorStepState
from dpjax.papers.mirror._descent import anytime_average as anytime_average
from dpjax.papers.mirror._descent import mirror_step as mirror_step
from dpjax.papers.mirror._maps import MirrorMap as MirrorMap
from dpjax.papers.mirror._maps import entropic as entropic
from dpjax.papers.mirror._maps import euclidean_ball as euclidean_ball
from dpjax.papers.mirror._maps import euclidean_box as euclidean_box
from dpjax.papers.mirror._maps import p_norm as p_norm
from dpjax.papers.mirror._maps import product as product
