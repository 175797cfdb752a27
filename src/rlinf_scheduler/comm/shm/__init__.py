"""Shared memory of the processes of one machine: each writes into an arena of its own, and reads those of others.

payloads.py      what a process sends and receives: in the message, or in shared memory
sent_payload.py  an object on its way; payload.py: one that has come
offers.py        who reads this process's arena
arena.py         this process's shared memory; blocks.py: which of its blocks are free
foreign.py       the arena of some process, open for reading; readers.py: those that are open here, and in forks
holders.py       who holds which block, in shared memory; layout.py: where everything lies
ledger.py        how much all processes of a machine may take, and take
kernel.py        what all of that asks of the kernel; io_thread.py: and of the I/O thread and the messenger
"""
