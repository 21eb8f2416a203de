"""How our YAML files are read: schema, units, positions of errors, reference pages."""
