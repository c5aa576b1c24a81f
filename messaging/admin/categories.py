"""Categories in the forms and cells of the admin."""

from __future__ import annotations

from collections.abc import Collection

from django import forms

from messaging.domain.rails import Category


class CategoriesField(forms.MultipleChoiceField):
    """One box for each."""

    def __init__(self, help_text: str) -> None:
        choices = [(category.value, category.value) for category in Category]
        super().__init__(choices=choices, required=False, widget=forms.CheckboxSelectMultiple, help_text=help_text)


def listed(categories: Collection[str]) -> str:
    """In the order of their importance."""
    return ", ".join(category.value for category in Category if category in categories)
