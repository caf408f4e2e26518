"""How models spell attention. `table` lists the families; the other modules write whole programs, by kind."""
