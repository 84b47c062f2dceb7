"""The routes: one table, and for each subject the models of bodies and answers with their handlers. No HTTP here."""
