"""Bulk translation: shards in, shards out (`regard translate model in/ --out out/`)."""
