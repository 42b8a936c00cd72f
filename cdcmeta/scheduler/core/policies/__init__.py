"""What decides which capture gets which table: pure functions of facts, one file each."""
