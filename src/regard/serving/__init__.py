"""The translation server: an HTTP door to models, with LibreTranslate's API and a page. The only home of the web framework."""
