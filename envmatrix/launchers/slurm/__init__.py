"""The launcher ``slurm``: one batch job runs one block on one node; the files it leaves decide what is done."""
