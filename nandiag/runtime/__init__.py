"""What runs inside each worker: injection, watching, replay and the event file. Never imports rich, typer or yaml."""
