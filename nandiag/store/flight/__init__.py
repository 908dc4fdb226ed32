"""What torch's flight recorder tells of collectives: its dumps, read without unpickling (reader and worker)."""
