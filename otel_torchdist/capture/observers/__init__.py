"""What looks at the tensors of operations: functions of the user's, and synchronised timing."""
