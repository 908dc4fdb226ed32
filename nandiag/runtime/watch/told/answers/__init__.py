"""What the script does about bad numbers by itself: its questions, and the steps that it leaves out (worker)."""
