"""Attribution of a gain: to factors, to parts of a step, and to causes."""
