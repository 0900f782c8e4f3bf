"""Methods that draw vertices: Frank-Wolfe and saddle points."""
