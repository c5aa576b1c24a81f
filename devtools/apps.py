from django.apps import AppConfig


class DevtoolsConfig(AppConfig):
    """Development tools: embedded demo, sandbox provider, benches. Nothing in production imports it."""

    name = "devtools"
