"""What a rank tells of its steps: harm, each sort of it once while it goes on; updates left out; the newest steps."""
