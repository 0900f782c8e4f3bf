"""Every draw that privacy rests on: words, keys, normals, Laplace, Gumbels, integers, gaps."""
