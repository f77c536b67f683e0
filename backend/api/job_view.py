"""A job as a client sees it: its steps with how far each is, in the language of who asks."""

from typing import Any

from backend.catalogue import Language, say
from backend.knowledge.job_repository import STEPS, StoredJob
from backend.schemas.documents import JobInfo, JobStatus, JobStep


def job_info(job: StoredJob, language: Language) -> JobInfo:
    """The steps before the current one are done, those after it have not begun."""
    failed = job.status == "failed"
    return JobInfo(
        job_id=job.id,
        filename=job.filename,
        status=job.status,
        current_step=job.step,
        message=say(f"job_{job.kind}_{job.status}", language),
        total_chunks=job.total_chunks,
        processed_chunks=job.processed_chunks,
        error=say(job.code, language) if failed and job.code else None,
        code=job.code if failed else None,
        warnings=[_warning(warning, language) for warning in job.warnings],
        created_at=job.created_at,
        updated_at=job.updated_at,
        steps=_steps(job, language),
    )


def _steps(job: StoredJob, language: Language) -> list[JobStep]:
    keys = STEPS[job.kind]
    current = keys.index(job.step)
    steps: list[JobStep] = []
    for number, key in enumerate(keys):
        status, percent = job.status, job.percent
        if number < current or job.status == "completed":
            status, percent = "completed", 100
        elif number > current:
            status, percent = "pending", 0
        label = say(f"job_{job.kind}_step_{key}", language)
        steps.append(
            JobStep(key=key, label=label, percent=percent, status=status, message=_message(job, status, language))
        )
    return steps


def _message(job: StoredJob, status: JobStatus, language: Language) -> str:
    if status == "failed" and job.code:
        return say(job.code, language)
    return say(f"job_step_{status}", language)


def _warning(warning: dict[str, Any], language: Language) -> str:
    values = dict(warning)
    return say(values.pop("key"), language, **values)
