"""What is known of the numbers that lie in memory before anybody looks at them."""
