"""What numpy writes into, by the text of the script."""
