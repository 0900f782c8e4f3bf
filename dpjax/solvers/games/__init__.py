"""Matrix games between two players with many strategies."""
