"""Early warnings: what is unusual while all is still finite, by numbers that the step's one host read brings (worker).

Nothing here is an anomaly, changes the training, or reads the host by itself.
"""
