"""`megaserve demo`: two real checkpoints from disk to score, each step an ordinary command that anybody can type."""
