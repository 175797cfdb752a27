"""Large objects for other machines, pulled out of the memory of the process that has them: if the user asks for it."""
