"""From a submission and a release to a result: figures, references, flags."""
