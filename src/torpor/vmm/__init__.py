"""The machine layer: one contract (`driver`), and the drivers that keep it."""
