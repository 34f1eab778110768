"""`damc.sample`: draws from any density in one call, on any support, with a verdict."""
