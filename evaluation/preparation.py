"""From options to a run that can be asked: data and prompts first, then the run directory that belongs to them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.console import say, warn
from evaluation.datasets import Dataset, Image, Item, load_dataset, with_sound_images
from evaluation.errors import PreflightError
from evaluation.options import EvaluateOptions
from evaluation.plan import AskingSettings, Question, plan_questions
from evaluation.preflight import ServedModel
from evaluation.prompts import PromptFamily, family_text, load_template, template_text
from evaluation.request_types.dialogue import load_turn_function
from evaluation.rows import check_rows
from evaluation.run_directory.layout import RunLayout
from evaluation.run_directory.manifest import Manifest
from evaluation.run_directory.open_run import OpenRun, create_or_resume, rows_entry
from evaluation.scorers import Scorer, choose_scorers


@dataclass(frozen=True)
class Material:
    """What is asked, before anybody was told. template: the text of --prompt-template."""

    dataset: Dataset
    settings: AskingSettings
    template: str | None = None


@dataclass(frozen=True)
class Prepared:
    """A run with its questions, in the order of the data. images: of all of them."""

    run: OpenRun
    questions: list[Question]
    scorers: list[Scorer]
    images: list[Image]


def read_material(options: EvaluateOptions) -> Material:
    """Data, template and dialogue function from their files. Raises DatasetError."""
    dataset = load_dataset(options.data)
    template = load_template(options.prompt_template) if options.prompt_template else None
    renderer = family_text(options.prompt)
    if template is not None:
        renderer = template_text(template, str(options.prompt_template))
    settings = AskingSettings(
        request_type=options.request_type,
        parameters=options.parameters,
        renderer=renderer,
        continuation=options.continuation,
        next_turn=load_turn_function(options.next_turn) if options.next_turn else None,
    )
    return Material(dataset, settings, template)


def prepare(options: EvaluateOptions, material: Material, model: ServedModel) -> Prepared:
    """Check what can be checked before the first question, then begin or resume the run. Raises SetupError."""
    layout = RunLayout(options.output)
    sound = _sound_items(options, material.dataset, model)
    questions = plan_questions(sound, material.settings, model.identity)
    items = [question.item for question in questions]
    scorers = choose_scorers(options.scorer, items, options.request_type)
    check_rows(options.rows, items)
    warn(material.dataset.warnings)
    warn([f"row {item.row}: {item.error}; it is not asked and counts as wrong" for item in items if item.error])
    if options.new_run and (moved := layout.supersede()):
        say(f"Earlier answers moved to {moved}")
    run = create_or_resume(layout, _manifest(options, material, model, questions), items)
    return Prepared(run, questions, scorers, [image for item in sound for image in item.all_images()])


def _sound_items(options: EvaluateOptions, dataset: Dataset, model: ServedModel) -> list[Item]:
    """The selected rows, their images opened. PreflightError when the model takes none."""
    items = with_sound_images(dataset.items[: options.limit])
    with_images = [item for item in items if item.all_images()]
    if with_images and not model.takes_images:
        raise PreflightError(
            f"{len(with_images)} rows of {dataset.name} have images (the first is row {with_images[0].row}), "
            f"but {model.name} is a {model.kind}, which reads text only"
        )
    return items


def _manifest(
    options: EvaluateOptions, material: Material, model: ServedModel, questions: Sequence[Question]
) -> Manifest:
    dataset = material.dataset
    return Manifest(
        dataset={"name": dataset.short_name, "path": dataset.location, "sha256": dataset.sha256},
        prompt=_prompt_entry(options.prompt, material.template),
        parameters=material.settings.to_dict(),
        model=model.to_dict(),
        server=model.info,
        rows=rows_entry([question.item for question in questions]),
        thinking=options.thinking.to_dict(),
        created_at=time.time(),
    )


def _prompt_entry(family: PromptFamily, template: str | None) -> dict[str, str | None]:
    entry = {"template": template, "sha256": hashlib.sha256((template or "").encode()).hexdigest()}
    return entry if family is PromptFamily.AUTO else {**entry, "family": family.value}
