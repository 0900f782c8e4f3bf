"""The learners of this package that `OnlineToBatch` knows by name."""

from dpjax.papers.learners._adagrad_norm import adagrad_norm
from dpjax.papers.learners._coin_betting import coin_betting
from dpjax.papers.learners._distance_adaptive import distance_adaptive
from dpjax.papers.learners._dual_averaging import dual_averaging
from dpjax.papers.learners._optimistic_descent import optimistic_descent
from dpjax.papers.learners._parameter_free import parameter_free
from dpjax.papers.learners._strongly_convex import strongly_convex_descent
from dpjax.papers.online._learners import Learner, rate_of

# mean gradients are shorter than one record's may be; longer ones are fed at this length
_TYPICAL = 1 / 8

NAMED: dict[str, Learner] = {
    "optimistic": lambda s, p: dual_averaging(s.learning_rate, p.project, optimistic=True),
    "dual_averaging": lambda s, p: dual_averaging(s.learning_rate, p.project),
    "adagrad_norm": lambda s, p: adagrad_norm(s.learning_rate, p.project),
    "optimistic_descent": lambda s, p: optimistic_descent(rate_of(s), p.project),
    "strongly_convex": lambda s, p: strongly_convex_descent(1 / s.learning_rate, p.project),
    "distance_adaptive": lambda s, p: distance_adaptive(s.learning_rate, p.project),
    "parameter_free": lambda s, p: parameter_free(
        s.learning_rate, _TYPICAL * s.clip_norm, p.project
    ),
    "coin_betting": lambda s, p: coin_betting(s.learning_rate, _TYPICAL * s.clip_norm, p.project),
}
