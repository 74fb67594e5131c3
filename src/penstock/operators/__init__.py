"""Physical operators: one file each, all with the interface of `penstock.operators.base`."""
