"""See, measure and learn how data-parallel training behaves under different synchronisation strategies."""
