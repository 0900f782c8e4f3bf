"""Every draw that privacy rests on: words, keys, normals, Laplace, Gumbels, integers, gaps."""

from dpjax.random._keys import secret_key as secret_key
