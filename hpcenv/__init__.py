"""hpcenv: base images pinned to a site's MPI, the verdict before the job, and the proof."""

__version__ = "0.1.0"
