"""What watches while training runs: the sentinel round each optimizer step, losses, loss scale, history, response."""
