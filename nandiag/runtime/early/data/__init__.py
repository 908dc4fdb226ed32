"""The data that enters the model: batches unlike those before, channels unlike the others (worker)."""
