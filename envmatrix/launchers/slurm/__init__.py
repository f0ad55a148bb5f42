"""The launcher ``slurm``: each block is one batch job on one node, and its files decide which trials are done."""
