//! What many rounds measured, as a table.
