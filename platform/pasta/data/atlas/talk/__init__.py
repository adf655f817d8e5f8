"""Talk: what people ask of the atlas in their own words, one turn or several, with the answers."""
