"""Every draw that privacy rests on: words, keys, normals, Laplace, Gumbels, integers, gaps."""

from dpjax.random._secret_key import secret_key as secret_key
