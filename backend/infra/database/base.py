"""Declarative base and the column types that every table shares."""

from datetime import datetime
from typing import Annotated, Any, ClassVar
from uuid import UUID

from sqlalchemy import DateTime, MetaData, Text, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, mapped_column

Id = Annotated[UUID, mapped_column(primary_key=True, server_default=text("uuidv7()"))]
Timestamp = Annotated[datetime, mapped_column(DateTime(timezone=True), server_default=func.now())]
OptionalTimestamp = Annotated[datetime | None, mapped_column(DateTime(timezone=True))]
Json = Annotated[dict[str, Any], mapped_column(JSONB, server_default=text("'{}'::jsonb"))]


class Base(DeclarativeBase):
    """Names constraints by rule, so that migrations and error handling can name them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {str: Text, datetime: DateTime(timezone=True)}
