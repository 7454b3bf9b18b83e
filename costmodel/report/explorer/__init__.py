"""The document of `explore`: one HTML file in which readers ask for costs at sizes of their own."""
