"""What Citewire is compared with: the usual few lines that stream an agent's tokens and store nothing."""

import argparse
import json
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from tests.support.server import free_port


class Question(BaseModel):
    """The body of a question."""

    message: str
    session_id: str


def create_app(model_url: str) -> FastAPI:
    """The application."""
    model = ChatOpenAI(
        model="scripted", base_url=model_url, api_key=SecretStr("none"), streaming=True, stream_usage=True
    )
    agent: Any = create_agent(model, [])
    app = FastAPI()

    @app.post("/chat/stream")
    async def chat(question: Question) -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            messages = {"messages": [("user", question.message)]}
            async for chunk, _ in agent.astream(messages, stream_mode="messages"):
                if isinstance(chunk, AIMessageChunk) and chunk.content:
                    event = json.dumps({"type": "content", "content": chunk.content}, separators=(",", ":"))
                    yield f"data: {event}\n\n".encode()
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-url", required=True)
    port = free_port()
    app = create_app(parser.parse_args().model_url)
    print(f"http://127.0.0.1:{port}", flush=True)
    uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_level="warning")
