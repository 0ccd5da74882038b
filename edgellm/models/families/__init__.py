"""One file per `general.architecture`, named after it (with `_` for `-`), each with a `FAMILY`."""
