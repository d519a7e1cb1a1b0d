"""The formats on disk, a module each; readers raise FormatError for missing or damaged files."""
