"""The paper's claims as executable checks, and diagnostics for models of one's own."""
