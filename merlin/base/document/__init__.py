"""YAML documents as trees that know their lines, and typed blocks made of them, with findings at those lines."""
