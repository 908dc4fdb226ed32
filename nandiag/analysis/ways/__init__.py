"""The ways that damage takes between ranks: collectives, messages, the exchange of gradients (reader side)."""
