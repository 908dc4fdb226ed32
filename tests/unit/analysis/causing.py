"""What the catalogue names for some facts."""

from nandiag.analysis.causes import explain


def slugs(facts):
    story, mechanism = explain(facts)
    return story and story.slug, mechanism and mechanism.slug
