"""Tables, figures and the page, from records alone."""
