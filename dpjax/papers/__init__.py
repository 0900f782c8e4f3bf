"""Published settings and methods that no default uses; one module a paper."""
