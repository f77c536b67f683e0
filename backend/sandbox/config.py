"""Settings of the sandbox and of the assistant's directories. Environment names are the upper-case field names."""

from pydantic import BaseModel, Field

from backend.sandbox.base import SandboxLimits


class SandboxConfig(BaseModel):
    """``sandbox_seconds`` and ``sandbox_memory_bytes`` are of one run, ``sandbox_processes`` how many run at once in a
    worker; ``max_workspace_bytes`` is what each of a conversation's directories ``workspace`` and ``outputs`` holds."""

    sandbox_seconds: float = Field(default=10, gt=0, le=600)
    sandbox_memory_bytes: int = Field(default=134_217_728, ge=16_777_216)
    sandbox_processes: int = Field(default=2, ge=1, le=64)
    max_workspace_bytes: int = Field(default=104_857_600, ge=1_024)

    @property
    def sandbox_limits(self) -> SandboxLimits:
        """The limits of a run as the port has them."""
        return SandboxLimits(
            seconds=self.sandbox_seconds,
            memory_bytes=self.sandbox_memory_bytes,
            storage_bytes=self.max_workspace_bytes,
        )
