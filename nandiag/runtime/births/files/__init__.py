"""Files that the script reads its weights from and writes them to (worker)."""
