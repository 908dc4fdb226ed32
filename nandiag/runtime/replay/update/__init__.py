"""An optimizer's update that left weights bad, made again (worker)."""
