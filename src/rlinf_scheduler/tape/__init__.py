"""What happened, on disk: the inputs of a rank, to be run again; the deliveries of a channel, to be traced back.

- `framing.py`: records with checksums
- `files.py`: files of them, which are appended to until their process dies, and read afterwards
- `work.py`: which call and which step a thread or task works at, and what it has taken for that
- `entries.py`, `tape.py`, `rank_tape.py`: what a rank records, and what records it
- `recorded_rank.py`, `player.py`, `order.py`: what was recorded, what answers from it, and when that is over
- `ids.py`, `deliveries.py`, `lineage.py`: what a channel records, and where the items of a step came from
"""
