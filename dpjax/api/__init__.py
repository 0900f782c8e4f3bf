"""Front doors: what chooses a method and runs it."""

from dpjax.api._release import release as release
from dpjax.api._released import Release as Release
from dpjax.api._tune import tune as tune
from dpjax.api._tuned import Tuned as Tuned
