"""Records of what the shipped studies propose by themselves."""

from pathlib import Path

from making import make_record

from tune_speed.core.records import TrialRecord
from tune_speed.study.file import load_study
from tune_speed.training.recipe import Recipe

STUDIES = Path(__file__).parents[2] / "search_spaces"


def shipped(name: str, point: int) -> TrialRecord:
    """Returns a record of the study `name`'s own point of that number."""
    study = load_study(STUDIES / f"{name}.yaml", check_data=False)
    tree = study.space.build(study.search.points_to_evaluate[point])
    changes = {
        "recipe": Recipe.model_validate(tree).model_dump(mode="json"),
        "workload": study.workload.model_dump(mode="json"),
    }
    return make_record(f"t{point:04}", study=name).model_copy(update=changes)
