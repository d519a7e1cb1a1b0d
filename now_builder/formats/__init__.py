"""The formats on disk, a module each; readers raise FormatError for what is missing or damaged."""
