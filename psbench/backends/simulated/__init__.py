"""The simulated cluster: real gradients in virtual time."""
