"""The quality report: what the protocols measured on the bundled models, as pages of tables, plots and sentences."""
