"""New datasets out of old ones: converted, merged, split, transcoded. The old ones are only read.

parts (opened sources) -> assemble (tables, video packets, statistics) -> a hidden folder -> renamed
when whole
"""
