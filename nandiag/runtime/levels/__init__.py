"""What is watched beyond step borders: every module's inputs and outputs (``module``), every op (``op``)."""
