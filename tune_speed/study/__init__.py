"""The study file: YAML whose values know their lines, overrides, checks, the search space."""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "settings": ("AblateConfig", "CertifyConfig", "ResourceConfig", "SearchConfig"),
    "parameter": ("Parameter",),
    "file": ("RecipeFile", "StudyFile", "load_recipe", "load_study"),
    "space": ("SearchSpace",),
    "schema": ("StudySchema",),
    "yaml": ("dump_yaml", "parse_yaml", "read_yaml"),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
