"""The section ``[energy]``: powers by device and phase, batteries, and the carbon of a grid."""
