"""Raw tables: columns, labels, frames and codes."""
